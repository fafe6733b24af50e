"""`postroom doctor`: check a base for problems, or the GPUs of this machine."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from ..queue.base_check import examine
from ..text.safe_text import printable
from . import codes
from .options import CONTEXT, as_json, base_argument
from .output import print_json


@click.command(context_settings=CONTEXT)
@click.option("--gpu", is_flag=True, help="Check the GPUs of this machine instead, for a minute.")
@as_json
@base_argument
def command(base: str, gpu: bool, json_: bool) -> None:
    """Check BASE and its filesystem for problems; change nothing.

    With --gpu, run test jobs on a free GPU, also ones that fail in every known way, and print a
    report that you can paste into an issue. CUDA_VISIBLE_DEVICES chooses the GPUs.

    Exit code 1 if there is an error, 0 if there are at most warnings.

    \b
      postroom doctor ./base
      postroom doctor --gpu
    """
    if gpu:
        _check_gpus(json_=json_)
    findings = list(examine(base))
    if json_:
        print_json(findings)
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
        print_json(steps)
    else:
        click.echo(", ".join(f"{count} {verdict.value}" for count, verdict in counts if count))
    failed = any(step.verdict is Verdict.FAILED for step in steps)
    sys.exit(codes.JOB_FAILED if failed else codes.OK)
