"""What people do to groups of pilots: one table of verbs for command line, page and API.

A verb changes the groups on disk; the keeper, which is started if it is dead, does what they say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import PostroomError
from ..session.sessions import Sessions
from ..store.base import Base
from ..store.files import LocalFiles
from ..store.pilot_records import PilotGroup, PilotGroups, change_groups


@dataclass(frozen=True)
class GroupVerb:
    """One verb."""

    label: str  # on a button
    said: str  # when it is done
    change: Callable[[PilotGroup], None] | None  # None: the group is forgotten


def _drain(group: PilotGroup) -> None:
    group.drained, group.stopped = True, False


def _resume(group: PilotGroup) -> None:
    group.drained = group.stopped = False
    group.paused, group.forgiven_at = "", time.time()


def _stop(group: PilotGroup) -> None:
    group.drained = group.stopped = True


GROUP_VERBS = {
    "drain": GroupVerb("Drain", "drained", _drain),
    "resume": GroupVerb("Resume", "on again", _resume),
    "stop": GroupVerb("Stop", "stopped", _stop),
    "remove": GroupVerb("Remove", "removed; their pilots end after their jobs", None),
}


def change_pilots(base: Base, verb: str, names: Sequence[str] = ()) -> str:
    """Do what a verb says to some groups, or to all; return what was done, in words."""
    if verb not in GROUP_VERBS:
        verbs = ", ".join(GROUP_VERBS)
        raise PostroomError(f"{verb[:20]!r} is not a verb for pilots: use one of {verbs}")
    change, changed = GROUP_VERBS[verb].change, []

    def every(groups: PilotGroups) -> None:
        for name in _named(groups, names):
            if change is not None:
                change(groups.groups[name])
            else:
                del groups.groups[name]
            changed.append(name)

    change_groups(LocalFiles(), base, every)
    Sessions(base).keep_pilots()
    return f"{', '.join(changed)}: {GROUP_VERBS[verb].said}"


def _named(groups: PilotGroups, names: Sequence[str]) -> list[str]:
    """The groups of these names; all, if none is named."""
    for name in names:
        if name not in groups.groups:
            known = ", ".join(groups.groups) or "none"
            raise PostroomError(f"there is no group {name!r} of pilots; there are: {known}")
    if not names and not groups.groups:
        raise PostroomError("this base has no pilots: postroom pilots add")
    return list(names) or list(groups.groups)
