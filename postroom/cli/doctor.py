"""`postroom doctor`: check a base for problems, or the GPUs of this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import NoReturn

import click

from ..queue.base_check import examine
from ..text.safe_text import printable
from . import codes
from .options import CONTEXT, as_json, base_argument


@click.command(context_settings=CONTEXT)
@click.option("--gpu", is_flag=True, help="Check the GPUs of this machine instead, for a minute.")
@as_json
@base_argument
def command(base: str, gpu: bool, json_: bool) -> None:
    """Check BASE and its filesystem for problems; change nothing.

    With --gpu, run jobs on a free GPU that fail in all ways that jobs fail, and report what
    happens: a text to paste into an issue. CUDA_VISIBLE_DEVICES chooses the GPUs.

    Exit code 1 if there is an error, 0 if there are at most warnings.

    \b
      postroom doctor ./base
      postroom doctor --gpu
    """
    if gpu:
        _check_gpus(json_=json_)
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


def _check_gpus(*, json_: bool) -> NoReturn:
    from ..queue.gpu_check import Verdict, check_gpus

    steps = []
    for step in check_gpus():
        steps.append(step)
        if not json_:
            click.echo(f"{step.verdict.value:18}{printable(f'{step.name}: {step.seen}')}")
    counts = [(sum(step.verdict is one for step in steps), one) for one in Verdict]
    if json_:
        click.echo(json.dumps([asdict(step) for step in steps], indent=1))
    else:
        click.echo(", ".join(f"{count} {verdict.value}" for count, verdict in counts if count))
    failed = any(step.verdict is Verdict.FAILED for step in steps)
    sys.exit(codes.JOB_FAILED if failed else codes.OK)
