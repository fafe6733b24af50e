"""`postroom new`: create a project from the template."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import click

from .options import CONTEXT, make_folder

TEMPLATE = Path(__file__).parent.parent / "project" / "template"


@click.command(context_settings=CONTEXT)
@click.argument("folder")
def command(folder: str) -> None:
    """Create a project in FOLDER, which must be new or empty.

    \b
      postroom new my_project
      cd my_project && python main.py
    """
    target = Path(folder)
    make_folder(folder)
    if any(target.iterdir()):
        raise click.UsageError(f"{folder} is not an empty folder: nothing was written")
    for source in sorted(TEMPLATE.iterdir()):
        if source.suffix in (".py", ".sh"):
            shutil.copyfile(source, target / source.name)
    script = target / "start_agent.sh"
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    click.echo(f"created {target}: edit expensive_task.py, then run python main.py")
