"""The pilots of a batch: those of a group that the user's queue knows, for as long as it runs.

A batch has a base of its own, so its pilots are its own, too: like those of the queue's group, and
at most as many, besides them. The group is `temporary`: if the batch is killed, its keeper drains
it, and a repetition of the batch has it go on.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import PostroomError
from ..session.sessions import Sessions
from ..store.base import Base, default_base, open_base
from ..store.files import LocalFiles
from ..store.pilot_records import PilotGroup, PilotGroups, change_groups, read_groups


class BatchPilots:
    """One group of pilots, while a batch runs."""

    def __init__(self, base: Base, sessions: Sessions, name: str) -> None:
        self._base = base
        self._sessions = sessions
        self._name = name
        self._files = LocalFiles()
        self._group = find_group(self._files, name)
        self.most = self._group.most

    def start(self) -> None:
        """Have pilots while lines wait."""
        # A line needs no torch, and a batch that is over keeps nothing idle.
        mine = replace(self._group, preload="", least=0, temporary=True)

        def change(groups: PilotGroups) -> None:
            groups.groups[self._name] = mine

        change_groups(self._files, self._base, change)
        self._sessions.keep_pilots()

    def end(self, *, now: bool) -> None:
        """Start no more, and end those that live: after their line, or now."""

        def change(groups: PilotGroups) -> None:
            if group := groups.groups.get(self._name):
                group.drained, group.stopped = True, now

        change_groups(self._files, self._base, change)
        self._sessions.keep_pilots()


def find_group(files: LocalFiles, name: str) -> PilotGroup:
    """The group of this name of the user's queue, as somebody would start it now."""
    folder = default_base()
    groups = read_groups(files, open_base(folder, write=False)).groups
    if name not in groups:
        known = ", ".join(groups) or "none"
        raise PostroomError(
            f"there is no group {name!r} of pilots on {folder} (there are: {known}): "
            "add it with postroom pilots add"
        )
    return replace(groups[name], drained=False, stopped=False, paused="", forgiven_at=0.0)
