"""`postroom doctor`: check a base for problems."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from ..queue.base_check import examine
from ..text.safe_text import printable
from . import codes
from .options import CONTEXT, as_json, base_argument


@click.command(context_settings=CONTEXT)
@as_json
@base_argument
def command(base: str, json_: bool) -> None:
    """Check BASE and its filesystem for problems; change nothing.

    Exit code 1 if there is an error, 0 if there are at most warnings.

    \b
      postroom doctor ./base
    """
    findings = list(examine(base))
    if json_:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            click.echo(f"{finding.level:8}{printable(finding.what)}")
            if finding.advice:
                click.echo(f"{'':8}-> {printable(finding.advice)}")
    wrong = any(finding.level == "error" for finding in findings)
    sys.exit(codes.JOB_FAILED if wrong else codes.OK)
