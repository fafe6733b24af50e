"""`postroom retention`: how long results of Python programs stay."""

from __future__ import annotations

import time
from math import inf

import click

from ..dispatch.old_runs import plan
from ..queue.disk_usage import look, usage_rows
from ..queue.queue_view import QueueView
from ..store.retention import (
    RetentionSettings,
    parse_keep,
    read_settings_of,
    retention_of,
    write_settings_of,
)
from ..text.durations import format_time
from ..text.sizes import format_bytes
from .job_options import in_base
from .options import CONTEXT, as_json
from .output import print_json, print_table, talk

SHOWN = 8
# A base of a million files is measured for so long at most.
LOOK_S = 20.0


@click.command(context_settings=CONTEXT)
@click.option("--results", metavar="TIME", help="Keep results for TIME: 12h, 30d, forever.")
@click.option("--size", metavar="SIZE", help="Keep at most SIZE: 500M, 20G, forever.")
@click.option("--default", "default", is_flag=True, help="Use the defaults: 7d, and at most 5G.")
@as_json
@in_base
def command(
    view: QueueView, results: str | None, size: str | None, default: bool, json_: bool
) -> None:
    """Show or set how long results of Python programs stay, and what takes space.

    The scheduler removes runs of Master.run, start, submit and open when all their jobs have ended:
    those that are too old, and the oldest ones if all together are too large. A run stays while its
    program uses its results. Jobs of the queue, and open(keep=True), stay until `postroom clean`.

    \b
      postroom retention
      postroom retention --results 30d --size 50G
    """
    files, base = view.files, view.base
    if results or size or default:
        asked = parse_keep(results, size)
        before = RetentionSettings() if default else read_settings_of(files, base)
        write_settings_of(files, base, asked.over(before))
    began = time.time()
    usage = look(files, base, LOOK_S, fresh=True)
    kept = retention_of(files, base, disk_bytes=files.disk_space(base.root)[1])
    going = plan(usage, kept, time.time())
    if json_:
        said = {
            "results_s": kept.results_s,
            "results_bytes": kept.results_bytes,
            "measured_at": usage.at,
            "bytes": usage.by_kind(),
            "going": [{**one._asdict(), "at": None if one.at == inf else one.at} for one in going],
        }
        print_json(said)
        return
    talk(f"results of Python programs stay {kept}")
    if usage.at < began:
        when = f"measured {format_time(usage.at)}" if usage.at else "nobody has measured it yet"
        talk(f"the base is too large to be measured in {LOOK_S:g} s: {when}")
    print_table([["KIND", "SIZE"], *usage_rows(usage)])
    rows = [
        [one.run, format_bytes(one.nbytes), "now" if one.over_limit else _when(one.at)]
        for one in going[:SHOWN]
    ]
    if rows:
        click.echo()
        print_table([["RUN", "SIZE", "GOES"], *rows])
    if len(going) > SHOWN:
        talk(f"... and {len(going) - SHOWN} more")


def _when(at: float) -> str:
    return "when there is no room" if at == inf else format_time(at)
