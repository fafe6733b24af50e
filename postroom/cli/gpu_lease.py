"""`postroom gpu get`, `run`, `release` and `idle`: the verbs that scripts call in loops.

So this module imports nothing slow (see `gpu_verbs`).
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NoReturn

from ..errors import CardHeld, GpuError
from ..gpus.cards import inventory
from ..gpus.cards.inventory import Card, CardWatch
from ..gpus.ledger import lease_keeper
from ..gpus.ledger.protocol import WITHOUT_A_LEASE, Lease, LeaseEntry, LeaseRequest, Ledger
from ..system import processes
from ..text import sizes
from . import codes
from .gpu_output import Misuse, print_json, say, talk

NOT_EXECUTABLE = 126  # the exit codes of shells
NOT_FOUND = 127  # for a command that cannot be started
RELEASE_PATIENCE_S = 5.0


def lease_for(
    ledger: Ledger,
    watch: CardWatch,
    owner: processes.Process,
    *,
    count: int,
    memory: str | None,
    gpus: str | None,
    pack: bool,
    timeout_s: float | None,
    name: str,
    for_s: float | None = None,
    beside: bool = False,
) -> tuple[Lease, list[Card]]:
    """Wait for the requested cards, with messages on stderr; exit with 75 after `timeout_s`."""
    if gpus and count > 1:
        raise Misuse("--gpus and -n cannot be combined: --gpus names the GPUs")
    cards = watch.cards(links=count > 1)
    watch.close()  # the wait may be long, and the command must not inherit a child
    request = LeaseRequest(
        count=count,
        cards=tuple(card.uuid for card in inventory.pick(cards, gpus)) if gpus else (),
        memory_mib=sizes.to_mib(memory) if memory else None,
        name=name,
        pack=pack,
        owner=owner,
        lasts_s=for_s,
        beside=beside,
    )
    try:
        lease = ledger.acquire(
            request,
            timeout_s,
            waiting=lambda reason: talk(f"waiting: {reason}{_way_out(reason)}"),
            wanted=lambda: processes.alive(owner) is not False,
            cards=cards,
        )
    except CardHeld as error:
        talk(f"no card: {error}")
        sys.exit(codes.NO_GPU)
    granted = [card for card in cards if card.uuid in lease.cards]
    for card in granted:
        if card.used_mib and card.processes and not memory:
            who = " and by ".join(process.describe() for process in card.processes)
            talk(f"card {card.index} is also used by {who}, without a lease")
    return lease, granted


def _way_out(reason: str) -> str:
    return " (--beside-strangers does not wait for them)" if WITHOUT_A_LEASE in reason else ""


def get(ledger: Ledger, watch: CardWatch, *, json_: bool, **scheduling: Any) -> None:
    """Wait for a GPU and print its id.

    The calling shell holds the GPU until it calls `release`, or until it and
    every process that it has started since have ended. This works in
    ID=$(postroom gpu get) and in read ID < <(postroom gpu get). Several ids are
    printed as 0,1, in the form of CUDA_VISIBLE_DEVICES.
    """
    owner = lease_keeper.caller()
    lease, granted = lease_for(ledger, watch, owner, **scheduling)
    answer = ",".join(card.visible_id for card in granted)
    if json_:
        import json

        answer = json.dumps(
            {
                "lease_id": lease.lease_id,
                "ids": [card.visible_id for card in granted],
                "uuids": [card.uuid for card in granted],
                "memory_mib": lease.memory_mib,
                "owner_pid": owner.pid,
                "environment": _environment(lease, granted),
            }
        )
    lease_keeper.keep(lease, owner)
    say(answer)


def run(
    ledger: Ledger,
    watch: CardWatch,
    *,
    command: list[str],
    container: str | None,
    **scheduling: Any,
) -> NoReturn:
    """Run COMMAND on a GPU of its own, with CUDA_VISIBLE_DEVICES set.

    The command replaces this process and holds the lease, and so do its
    children: the GPU is free when the last of them ends. The exit code is the
    command's own. Put -- before the command.
    """
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise Misuse("Missing argument 'COMMAND...'.")
    if not scheduling["name"]:
        scheduling["name"] = os.path.basename(command[0])
    lease, granted = lease_for(ledger, watch, processes.myself(), **scheduling)
    from ..gpus.ledger.lease_environment import granted_over

    if container:
        from ..commands.container_launcher import launcher_words

        command = launcher_words(container, command)
    environment = granted_over(os.environ, _environment(lease, granted))
    if "POSTROOM_JOB" not in os.environ:  # a job leaves no process behind; its queue looks anyway
        ledger.note_end(lease)
    for fd in lease.fds:
        os.set_inheritable(fd, True)
    import signal

    # Python ignores this signal, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - what the user typed
    except OSError as error:
        lease.release()
        # A folder of PATH that may not be read is a "permission denied", too.
        missing = isinstance(error, FileNotFoundError) or not _is_there(command[0])
        talk(f"{command[0]}: {'No such file or directory' if missing else error.strerror}")
        sys.exit(NOT_FOUND if missing else NOT_EXECUTABLE)


def _environment(lease: Lease, granted: list[Card]) -> dict[str, str]:
    """Return the variables that a program on the cards of a lease needs."""
    from ..gpus.ledger.lease_environment import lease_environment

    shared = lease.memory_mib is not None
    return inventory.pin(*granted) | lease_environment(lease.lease_id, shared=shared)


def _is_there(program: str) -> bool:
    """Whether a program, or a folder of that name, can be seen where it is looked for."""
    folders = [""] if "/" in program else os.get_exec_path()
    return any(os.path.lexists(os.path.join(folder, program)) for folder in folders)


def release(ledger: Ledger, watch: CardWatch, *, which: str, force: bool, json_: bool) -> None:
    """Release a GPU that `get` leased.

    Only a lease of the calling shell is released, so a late or repeated release
    never takes a GPU from somebody who got it since. With --force it may be a
    lease of another shell of yours.
    """
    uuids, failure = _uuids(watch, which)
    found = [
        entry
        for entry in ledger.holders(squatters=False)
        if which == entry.lease_id or (uuids and set(uuids) & set(entry.cards))
    ]
    above = set(processes.ancestors())
    released = []
    for entry in found:
        refusal = "" if which == entry.lease_id else _refusal(entry, above, force)
        if not refusal and entry.uid != os.geteuid() and os.geteuid() != 0:
            refusal = "it is another user's"
        if not refusal and entry.keeper is None:
            refusal = "it ends with its own process"
        if not refusal and entry.keeper is not None and processes.alive(entry.keeper) is None:
            refusal = "its shell is in another container: release it there"
        if refusal:
            talk(f"not released: {which} is held by {_named(ledger, entry)}: {refusal}")
        elif entry.keeper is not None and lease_keeper.dismiss(entry.keeper):
            _await_end(ledger, entry)
            released.append(entry.lease_id)
    if not found and failure is not None:
        raise failure
    if not found:
        talk(f"{which} is not held: nothing to release")
    if json_:
        print_json({"released": released})


def _uuids(watch: CardWatch, which: str) -> tuple[list[str], GpuError | None]:
    """Return the cards that `which` names, and the error if the driver fails."""
    try:
        cards = watch.cards()
    except GpuError as error:
        return [], error  # a lease id needs no cards
    try:
        return [card.uuid for card in inventory.pick(cards, which)], None
    except GpuError:
        return [], None


def _named(ledger: Ledger, entry: LeaseEntry) -> str:
    """Describe a lease, with the squatter if its lock has one."""
    held = {entry.lease_id: entry} | {held.lease_id: held for held in ledger.holders()}
    return held[entry.lease_id].describe()


def _refusal(entry: LeaseEntry, above: set[int], force: bool) -> str:
    ours = entry.process.pid in above and processes.alive(entry.process)
    return (
        ""
        if ours or force
        else "it belongs to another shell (if that is yours, --force releases it)"
    )


def _await_end(ledger: Ledger, entry: LeaseEntry) -> None:
    """Wait until others see it as free: the script may request it again at once."""
    deadline = time.monotonic() + RELEASE_PATIENCE_S
    while any(held.lease_id == entry.lease_id for held in ledger.holders(squatters=False)):
        if time.monotonic() > deadline:
            raise GpuError(f"the lease of {_named(ledger, entry)} does not end")
        time.sleep(0.005)


def idle(ledger: Ledger, watch: CardWatch, *, json_: bool) -> None:
    """Print the ids of the free GPUs, one per line."""
    from ..gpus.ledger.card_overview import CardState, overview

    views = overview(ledger, watch.cards(), squatters=False)
    ids = [view.card.visible_id for view in views if view.state is CardState.IDLE]
    if json_:
        print_json(ids)
    elif ids:
        say("\n".join(ids))
