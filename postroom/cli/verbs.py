"""The table of verbs, each imported only when it is called.

`postroom gpu get` runs in shell loops: a verb must not pay for the imports of another.
"""

from __future__ import annotations

import importlib

import click

from .fast_import import importing

# group: verb: (module of this folder, and the command in it if there are several; a line of help)
GROUPS = {
    "Start here": {
        "run": ("run", "Run a file of shell commands on a list of GPUs."),
        "up": ("up:up", "Start your queue: a scheduler, agents and the page."),
        "submit": ("submit", "Queue a command."),
        "status": ("status", "Show the queue on one page."),
        "ui": ("ui", "Serve the queue as a web page."),
    },
    "Jobs": {
        "jobs": ("jobs", "List jobs."),
        "show": ("show", "Show everything about one job."),
        "logs": ("logs", "Print or follow the output of a job."),
        "wait": ("wait", "Wait until jobs have ended."),
        "kill": ("orders:kill", "Kill running jobs, cancel waiting ones."),
        "rerun": ("rerun", "Queue jobs again, or all that failed."),
        "hold": ("orders:hold", "Keep waiting jobs from starting."),
        "release": ("orders:release", "Let held jobs start."),
        "priority": ("orders:priority", "Set which waiting jobs start first."),
        "edit": ("edit", "Change the command or the options of a waiting job."),
        "move": ("orders:move", "Move a waiting job within the queue."),
    },
    "The queue": {
        "down": ("up:down", "Stop your queue, after the running jobs."),
        "master": ("master", "Run the scheduler for a base."),
        "agents": ("agents", "Start, stop and list the agents, one per GPU."),
        "pilots": ("pilots", "Run agents on other machines: a Slurm cluster, or Ray."),
        "pause": ("orders:pause", "Start no more jobs."),
        "resume": ("orders:resume", "Start jobs again after a pause."),
        "limit": ("orders:limit", "Limit how many jobs of a project run at once."),
        "drain": ("orders:drain", "Give agents no more jobs."),
        "top": ("top", "Watch the queue live on the full screen."),
        "clean": ("clean", "Remove finished runs with their results and logs."),
        "retention": ("retention", "Show or set how long results of programs stay."),
        "doctor": ("doctor", "Check a base for problems."),
    },
    "GPUs": {
        "gpu": ("gpu", "List GPUs, see who holds them, lease them for any program."),
        "profiles": ("profiles", "List, show and forget how much memory jobs need."),
    },
    "Batches and sweeps": {
        "sweep": ("sweep", "Run a command for every combination of values."),
        "table": ("table", "Show the jobs of a batch, with figures from their logs."),
        "attach": ("attach", "Watch a batch that runs in the background."),
        "diff": ("diff", "Show what has changed since a job's snapshot."),
    },
    "Set-up": {
        "new": ("new", "Create a project from the template."),
        "mcp": ("mcp_server", "Serve the queue to a coding assistant."),
        "completion": ("completion", "Print a completion script for your shell."),
        "grid-engine": ("grid_engine", "Write qsub, qstat and qdel scripts."),
    },
}
VERBS = {verb: entry for group in GROUPS.values() for verb, entry in group.items()}


class Verbs(click.Group):
    """A click group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every verb."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb."""
        if cmd_name not in VERBS:
            return None
        place, _, name = VERBS[cmd_name][0].partition(":")
        with importing():
            module = importlib.import_module(f"postroom.cli.{place}")
        command = getattr(module, name or "command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by group, from the table, without importing them."""
        width = max(map(len, VERBS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                rows = [(verb.ljust(width), line) for verb, (_, line) in group.items()]
                formatter.write_dl(rows)


EXAMPLES = """\b
Examples:
  postroom run jobs.txt --gpus 0,1               run a file of commands, then exit
  postroom up                                    or have a queue: a scheduler, agents, a page
  postroom submit python train.py --lr 0.1       queue a command
  postroom status                                see what runs
"""


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},  # `options` imports too much for it
)
@click.version_option(package_name="postroom")
@click.pass_context
def postroom(ctx: click.Context) -> None:
    """Run jobs on the GPUs of this machine, through nothing but a folder.

    No server, no root, no lost jobs: kill -9 anything. The queue is the folder given by -b BASE,
    otherwise $POSTROOM_BASE, otherwise your own, wherever you are: ~/.local/state/postroom/queue.
    For the options of a verb: postroom VERB --help.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
