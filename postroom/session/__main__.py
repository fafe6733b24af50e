"""`python -m postroom.session GPU BASE`: one session in the foreground."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from ..errors import PostroomError
from ..store.base import Base, create_base, open_base
from ..store.files import LocalFiles
from ..store.snapshot import DEAD, snapshot
from ..text.safe_text import printable
from .exclusive_mode import exclusive_mode
from .guardian import Guardian
from .rest import rest_s
from .slots import open_slot

HELP = """\
One GPU session: pins a GPU, watches the mailbox BASE/agent_pool/<id>.POOL, runs the jobs in it.

Ctrl-C or SIGTERM: stop after the running job. A second one: stop now. The output of tasks, and all
messages, go to BASE/log/postroom.log.

examples:
  python -m postroom.session 0 ./base              the first GPU (in PCI order)
  python -m postroom.session 0 ./base --agent 0b   a second session on the same GPU
  python -m postroom.session cpu ./base            no GPU
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one session; return the exit code."""
    import argparse  # a forked session does without it

    parser = argparse.ArgumentParser(
        prog="python -m postroom.session",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("gpu", metavar="GPU", help="index or UUID of the GPU, or 'cpu'")
    parser.add_argument("base", metavar="BASE", help="the base folder; created if it is missing")
    parser.add_argument("--agent", metavar="ID", help="the agent's id (default: GPU)")
    parser.add_argument(
        "--exclusive",
        action="store_true",
        help="set compute mode EXCLUSIVE_PROCESS while the session lives (where allowed): only its "
        "worker can use the GPU, so commands of the session cannot",
    )
    parser.add_argument(
        "--wait", action="store_true", help="wait while somebody else holds the GPU"
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help="lease no GPU: each job reserves the GPU memory that it needs",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads for torch in this session"
    )
    parser.add_argument(
        "--preload",
        metavar="NAMES",
        help="modules to import at the start, separated by commas (default: torch)",
    )
    parser.add_argument(
        "--lazy",
        action="store_true",
        help="import them, and use the GPU, only with the first Python job: commands need neither",
    )
    parser.add_argument(
        "--rest",
        action="store_true",
        help="hold the GPU only while there are jobs (POSTROOM_REST: for how long after the last)",
    )
    parser.add_argument(
        "--yield",
        dest="yields",
        action="store_true",
        help="with --rest: stop the running job when it is another user's turn; it is queued again",
    )
    parser.add_argument(
        "--kept",
        action="store_true",
        help="stop after the running job when the base does not want this agent any more",
    )
    parser.add_argument("--while-pid", type=int, metavar="PID", help="stop when this process ends")
    parser.add_argument(
        "--private",
        action="store_true",
        help="the base is that process's alone: when it ends, stop now and remove the base",
    )
    return serve(**vars(parser.parse_args(arguments)))


def serve(gpu: str, base: str, **options: Any) -> int:
    """Run one session with the options that `main` reads; return the exit code."""
    try:
        return _serve(gpu, base, **options)
    except PostroomError as error:
        print(f"session: {printable(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"session: {base}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _serve(
    gpu: str,
    folder: str,
    *,
    agent: str | None = None,
    wait: bool = False,
    share: bool = False,
    threads: int | None = None,
    preload: str | None = None,
    lazy: bool = False,
    exclusive: bool = False,
    rest: bool = False,
    yields: bool = False,
    kept: bool = False,
    while_pid: int | None = None,
    private: bool = False,
) -> int:
    # A private base whose owner has removed it, or was killed, is not made again.
    base = open_base(folder) if private else create_base(folder)

    def say(text: str) -> None:
        print(f"session {agent or gpu}: {printable(text)}", file=sys.stderr, flush=True)

    slot, lease = open_slot(
        base,
        gpu,
        agent_id=agent,
        wait=wait,
        shares=share,
        threads=threads,
        preload=preload,
        lazy=lazy,
        later=rest,
        say=say,
    )
    owner_ended = False
    try:
        after_s = rest_s() if rest else None
        guardian = Guardian(base, slot, lease, rest_s=after_s, kept=kept, yields=yields)
        warm = bool(slot.preload)
        with exclusive_mode(slot.gpu, wanted=exclusive, warm=warm, lazy=lazy, say=say):
            try:
                return guardian.run(while_pid=while_pid, private=private)
            finally:
                owner_ended = guardian.owner_ended
    finally:
        if lease is not None:
            lease.release()
        if private and owner_ended:
            _remove_private(base)


def _remove_private(base: Base) -> None:
    """Remove the base that a process had for itself, unless an agent lives there.

    The process removes it when it shuts down. If it was killed, its last agent does.
    """
    with contextlib.suppress(OSError, PostroomError):
        if all(agent.state in DEAD for agent in snapshot(base, runs=False).agents):
            LocalFiles().remove_tree(base.root)


if __name__ == "__main__":
    sys.exit(main())
