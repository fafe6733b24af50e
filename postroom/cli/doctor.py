"""`postroom doctor`: what is wrong with a base, or soon will be."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from ..queue.base_check import examine
from ..text.safe_text import printable
from . import codes


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")
def command(base: str, as_json: bool) -> None:
    """Examine BASE and the filesystem it lies on; nothing is changed.

    Exit code 1 when something is wrong, 0 when there are at most warnings.
    """
    findings = list(examine(base))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            click.echo(f"{finding.level:8}{printable(finding.what)}")
            if finding.advice:
                click.echo(f"{'':8}-> {finding.advice}")
    wrong = any(finding.level == "error" for finding in findings)
    sys.exit(codes.JOB_FAILED if wrong else codes.OK)
