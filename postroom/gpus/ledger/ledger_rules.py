"""The administrator's rules for the ledger: how use fades, and how much each user may hold.

They are in one file, `postroom-rules.toml` in the ledger's folder; for a ledger in the default
folder, which a reboot empties, also `/etc/postroom/rules.toml`. It counts only if it belongs to
root or to the owner of the folder, and nobody else can write to it.

    half_life = "3d"            # what was used counts half as much after this time
    patience = "6h"             # who holds nothing waits no longer than this for those who use less

    [everybody]                 # who has no entry of their own
    cards = 4
    [users.alice]
    cards = 6
    memory = "200G"             # of all their cards together
    hours = 24                  # at a stretch: then there is no further card before it is released
    [groups.students]           # a group of Linux: all members together
    cards = 8
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ...errors import PostroomError
from ...system import processes
from ...system.absence import means_absent

FILE = "postroom-rules.toml"
FOR_ALL = "/etc/postroom/rules.toml"
HALF_LIFE_S = 3 * 86_400.0
PATIENCE_S = 6 * 3600.0
RULES_LIMIT = 1 << 20


class Limit(NamedTuple):
    """How much a user, or a group, may hold; None: as much as there is."""

    cards: int | None = None
    memory_mib: int | None = None
    hours: float | None = None


class Cap(NamedTuple):
    """A limit with the users that it counts together."""

    who: str  # "user alice", "group students"
    members: frozenset[int]
    limit: Limit


class LedgerRules(NamedTuple):
    """What the administrator has decided; by default only how use fades."""

    half_life_s: float = HALF_LIFE_S
    patience_s: float = PATIENCE_S
    everybody: Limit = Limit()
    users: Mapping[str, Limit] = {}
    groups: Mapping[str, Limit] = {}
    path: str = ""  # where they come from
    problem: str = ""  # why they are not used

    def caps(self, uids: Collection[int]) -> dict[int, tuple[Cap, ...]]:
        """The limits of each of some users; of a group, with the members among them."""
        if not (self.users or self.groups or any(v is not None for v in self.everybody)):
            return {}
        members = {
            group: frozenset(uid for uid in uids if group in _groups_of(uid))
            for group in self.groups
        }
        found = {}
        for uid in uids:
            name = processes.user_name(uid)
            own = Cap(f"user {name}", frozenset([uid]), self.users.get(name, self.everybody))
            shared = [
                Cap(f"group {group}", members[group], limit)
                for group, limit in self.groups.items()
                if uid in members[group]
            ]
            found[uid] = (own, *shared)
        return found


def read_rules(folder: str) -> LedgerRules:
    """Read the rules of a ledger; those that cannot be used say why."""
    from .protocol import default_folder

    places = [os.path.join(folder, FILE)]
    if os.path.realpath(folder) == os.path.realpath(default_folder()):
        places.append(FOR_ALL)
    for path in places:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if means_absent(error):
                continue
            return LedgerRules(path=path, problem=f"{path} cannot be read: {error.strerror}")
        with open(fd, "rb") as file:
            problem = _not_trusted(os.fstat(fd), os.stat(folder).st_uid)
            if problem:
                return LedgerRules(path=path, problem=f"{path} is not used: {problem}")
            try:
                return parse_rules(file.read(RULES_LIMIT).decode(), path)
            except (PostroomError, ValueError) as error:
                return LedgerRules(path=path, problem=f"{path} is not used: {error}")
    return LedgerRules()


def _not_trusted(found: os.stat_result, owner: int) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is no plain file"
    if found.st_uid not in (0, owner):
        return f"it belongs to user {processes.user_name(found.st_uid)}, not to root"
    if found.st_mode & 0o022:
        return "others than its owner can write to it: chmod go-w"
    return ""


def parse_rules(text: str, path: str = "") -> LedgerRules:
    """Read the text of the file; PostroomError or ValueError name what is wrong in it."""
    import tomllib  # late: most ledgers have no such file

    from ...text.durations import parse_duration

    said = tomllib.loads(text)
    half_life_s = parse_duration(str(said.pop("half_life", f"{HALF_LIFE_S:.0f}s")))
    patience_s = parse_duration(str(said.pop("patience", f"{PATIENCE_S:.0f}s")))
    if half_life_s < 60:
        raise PostroomError("half_life is at least 60s")
    everybody = _limit("everybody", said.pop("everybody", {}))
    users = _limits("users", said.pop("users", {}))
    groups = _limits("groups", said.pop("groups", {}))
    if said:
        raise PostroomError(
            f"{min(said)!r} is unknown: use half_life, patience, [everybody], [users.NAME] and "
            "[groups.NAME]"
        )
    return LedgerRules(half_life_s, patience_s, everybody, users, groups, path)


def _limits(section: str, said: Any) -> dict[str, Limit]:
    if not isinstance(said, dict):
        raise PostroomError(f"write [{section}.NAME], and limits below it")
    return {name: _limit(f"{section}.{name}", value) for name, value in said.items()}


def _limit(section: str, said: Any) -> Limit:
    from ...text.sizes import to_mib

    if not isinstance(said, dict):
        raise PostroomError(f"write [{section}], and limits below it")
    said = dict(said)
    cards, hours, memory = (
        said.pop("cards", None),
        said.pop("hours", None),
        said.pop("memory", None),
    )
    if said:
        raise PostroomError(f"[{section}] has {min(said)!r}: use cards, memory and hours")
    if cards is not None and (type(cards) is not int or cards < 0):
        raise PostroomError(f"cards of [{section}] is not a whole number")
    if hours is not None and (type(hours) not in (int, float) or not hours > 0):
        raise PostroomError(f"hours of [{section}] is not a number above 0")
    return Limit(cards, None if memory is None else to_mib(str(memory)), hours)


def _groups_of(uid: int) -> set[str]:
    """The names of the groups that a user is in."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return set()
    found = set()
    for gid in os.getgrouplist(user.pw_name, user.pw_gid):
        try:
            found.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return found
