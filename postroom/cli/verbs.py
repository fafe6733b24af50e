"""The table of verbs, each imported only when it is called.

`postroom gpu get` runs in shell loops: a verb must not pay for the imports of another.
"""

from __future__ import annotations

import importlib

import click

from .fast_import import importing

# verb: (module below postroom.cli, and the command in it if there are several; a line of help)
VERBS = {
    "agents": ("agents", "Start, stop and list the agents of a base."),
    "attach": ("attach", "Look at a batch that runs elsewhere."),
    "clean": ("clean", "Remove runs that are over, with what they left."),
    "completion": ("completion", "Let a shell complete verbs and ids of jobs."),
    "diff": ("diff", "What has changed since a job's snapshot."),
    "doctor": ("doctor", "Examine a base: what is wrong, or soon will be."),
    "drain": ("orders:drain", "Give agents no more jobs."),
    "gpu": ("gpu", "List GPUs, see who holds them, lease them for any program."),
    "grid-engine": ("grid_engine", "Write qsub, qstat and qdel, for grid engine's scripts."),
    "hold": ("orders:hold", "Keep jobs from being begun."),
    "jobs": ("jobs", "List jobs, page by page."),
    "kill": ("orders:kill", "End jobs for good, running or waiting."),
    "logs": ("logs", "What a job has printed, and prints."),
    "master": ("master", "Stand: work on whatever is in a base."),
    "move": ("orders:move", "Let a job stand elsewhere in the queue."),
    "new": ("new", "Write the template project into an empty folder."),
    "pause": ("orders:pause", "Begin no more jobs."),
    "priority": ("orders:priority", "Say which jobs go first."),
    "profiles": ("profiles", "What jobs were found to need: list, show, forget."),
    "release": ("orders:release", "Let held jobs run."),
    "rerun": ("rerun", "Queue jobs again; all that failed, with --failed."),
    "resume": ("orders:resume", "Begin jobs again after a pause."),
    "run": ("run", "Run a file of shell lines over a list of GPUs."),
    "show": ("show", "Everything about one job."),
    "status": ("status", "The queue at one look: cards, jobs, failures."),
    "submit": ("submit", "Queue a command."),
    "sweep": ("sweep", "Run a command for every combination of values."),
    "table": ("table", "All jobs of a batch, with figures from their logs."),
    "top": ("top", "The queue live, on the whole screen."),
    "ui": ("ui", "Show a base in the browser."),
    "wait": ("wait", "Wait until jobs have ended."),
}


class Verbs(click.Group):
    """A click group that knows its commands by name and imports them on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every verb."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one verb that was asked for."""
        if cmd_name not in VERBS:
            return None
        place, _, name = VERBS[cmd_name][0].partition(":")
        with importing():
            module = importlib.import_module(f"postroom.cli.{place}")
        command = getattr(module, name or "command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, line) in sorted(VERBS.items())])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="postroom")
def postroom() -> None:
    """Spread jobs over GPUs through nothing but a folder.

    No server, no root, no lost jobs: kill -9 anything.
    """
