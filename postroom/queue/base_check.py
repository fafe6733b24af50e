"""What is wrong with a base, or soon will be: looks at everything, changes nothing."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import BadFileError, BaseFolderError, GpuError
from ..store.append_log import lost_jobs
from ..store.base import FOLDERS, OUTBOX, Base, number_of, open_base
from ..store.files import LocalFiles
from ..store.mailbox import is_plain_name, read_letter
from ..store.runs import count_jobs, list_firsts, list_runs, read_run_info
from ..store.snapshot import BaseSnapshot, snapshot
from ..system import cgroups

# Filesystems on which the kernel's locks and links are known to mean what we need.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "bcachefs"}
LOW_SPACE = 1 << 30
LOW_INODES = 10_000
STALE_S = 24 * 3600.0
# Reading every parcel of a long history would take longer than anybody waits for a doctor.
MOST_PARCELS = 10_000


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: str  # "ok", "note", "warning", "error"
    what: str
    advice: str = ""


def examine(root: str | os.PathLike[str]) -> Iterator[Finding]:
    """Examine a base; findings come as they are made, worst cases included."""
    try:
        base = open_base(root, write=False)
    except BaseFolderError as error:
        yield Finding("error", str(error))
        return
    yield Finding("ok", f"{base.root} is a base of this version, private to this user")
    for check in (_folders, _filesystem, _locks, _space, _watches, _groups, _temporaries, _modes):
        yield from check(base)
    seen = snapshot(base)
    for look in (_master, _agents, _runs, _parcels, _orphans, _rejected):
        yield from look(base, seen)
    yield from _cards()


def _folders(base: Base) -> Iterator[Finding]:
    missing = [folder for folder in FOLDERS if not os.path.isdir(f"{base.root}/{folder}")]
    if missing:
        yield Finding(
            "error",
            f"folders are missing: {', '.join(missing)}",
            "somebody removed them; make them again with mode 0700",
        )


def _filesystem(base: Base) -> Iterator[Finding]:
    kind = filesystem_of(base.root)
    if kind in LOCAL:
        yield Finding("ok", f"it lies on {kind}, where locks and links can be trusted")
    else:
        yield Finding(
            "warning",
            f"it lies on {kind}, where locks, links or events may not work as they should",
            "put the base on a local disk; results can be moved to the network afterwards",
        )


def filesystem_of(path: str) -> str:
    """The kind of filesystem that a path lies on."""
    path = os.path.realpath(path)
    best, kind = "", "unknown"
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, mount, found, *_ = line.split()
            mount = mount.encode().decode("unicode_escape")
            inside = path == mount or path.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def _locks(base: Base) -> Iterator[Finding]:
    """Two descriptors of one file must exclude each other; tried on FORMAT, which nobody locks."""
    one, other = (os.open(base.format, os.O_RDONLY | os.O_NOFOLLOW) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Finding(
                "error", "two locks on one file do not exclude each other", "use a local disk"
            )
        except BlockingIOError:
            yield Finding("ok", "locks exclude each other")
    except OSError as error:
        yield Finding("error", f"a lock cannot be taken: {error.strerror}", "use a local disk")
    finally:
        os.close(one)
        os.close(other)


def _space(base: Base) -> Iterator[Finding]:
    status = os.statvfs(base.root)
    free = status.f_bavail * status.f_frsize
    if free < LOW_SPACE:
        yield Finding(
            "warning",
            f"{free / 2**20:.0f} MiB are free",
            "make room: on a full disk, work waits until there is some",
        )
    else:
        yield Finding("ok", f"{free / 2**30:.1f} GiB are free")
    if status.f_files and status.f_favail < LOW_INODES:
        yield Finding("warning", f"{status.f_favail} inodes are free", "remove small files")
    if status.f_flag & os.ST_RDONLY:
        yield Finding("error", "the filesystem is read-only", "remount it for writing")


def _watches(base: Base) -> Iterator[Finding]:
    from ..system.file_events import Waiter

    waiter = Waiter([base.agent_pool])
    waiter.wait(0.0, lambda: False)
    if waiter.blind:
        yield Finding(
            "warning",
            "no events can be had: everything works, at a slower pace",
            "raise fs.inotify.max_user_instances, or end programs that use many",
        )
    else:
        yield Finding("ok", "events can be had")
    waiter.close()


def _groups(base: Base) -> Iterator[Finding]:
    path = cgroups.make(f"{base.root}:doctor")
    if path:
        os.rmdir(path)
        yield Finding("ok", "commands run in control groups: none can hide from its end")
    else:
        yield Finding(
            "note",
            "no control group can be had: commands are found by their parents and their mark",
            "as root, or with systemd-run --user --scope, even what hides from both is ended",
        )


def _temporaries(base: Base) -> Iterator[Finding]:
    stale = 0
    for name in os.listdir(base.tmp):
        if name.startswith(OUTBOX):
            continue  # a worker's drawer, however long it has been idle
        try:
            age_s = time.time() - os.lstat(f"{base.tmp}/{name}").st_mtime
        except FileNotFoundError:
            continue
        stale += age_s > STALE_S
    if stale:
        yield Finding(
            "note",
            f"tmp/ holds {stale} files older than a day, left by processes that were killed",
            f"they mean nothing: find '{base.tmp}' -maxdepth 1 -type f -mtime +1 -delete",
        )


def _modes(base: Base) -> Iterator[Finding]:
    loose = [
        folder
        for folder in FOLDERS
        if os.path.isdir(f"{base.root}/{folder}")
        and stat.S_IMODE(os.stat(f"{base.root}/{folder}").st_mode) & 0o077
    ]
    if loose:
        yield Finding(
            "warning",
            f"others may look into {', '.join(loose)}",
            f"chmod -R go-rwx '{base.root}'",
        )


def _master(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    waiting = sum(run.asked - run.done for run in seen.runs)
    if seen.master_pid is not None:
        yield Finding("ok", f"a Master acts (pid {seen.master_pid})")
    elif waiting:
        yield Finding(
            "note",
            f"{waiting} jobs are not done and no Master acts",
            f"python main.py --resume, or python master.py '{base.root}'",
        )


def _agents(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    for agent in seen.agents:
        if agent.state == "dead":
            yield Finding(
                "warning",
                f"agent {agent.agent} is dead and left its things",
                "the next Master or session clears up; nothing is lost",
            )
        elif agent.state == "blocked":
            yield Finding(
                "error",
                f"agent {agent.agent} has results that it cannot write",
                "make room on the disk; they wait in its memory",
            )
        elif agent.state == "outdated":
            yield Finding(
                "error",
                f"agent {agent.agent} is of another version of Postroom, and is sent nothing",
                f"python agent.py stop '{base.root}' {agent.agent}, and start it again",
            )
        else:
            yield Finding("ok", f"agent {agent.agent} is {agent.state} (pid {agent.pid})")


def _runs(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    files = LocalFiles()
    known = set(list_runs(files, base))
    for run in sorted(known):
        try:
            read_run_info(files, base, run)
        except (FileNotFoundError, BadFileError) as error:
            yield Finding("error", f"run {run} has no card: {error}", "it is not served")
    for agent in seen.agents:
        letter = read_letter(files, base, agent.agent)
        if letter is not None and letter.run not in known:
            yield Finding(
                "warning", f"agent {agent.agent} works on the unknown run {letter.run}", ""
            )


def _parcels(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    """Every parcel must say of itself what its name says."""
    files = LocalFiles()
    looked = 0
    for run in reversed(seen.runs):
        for folder, kind, path in (
            (base.run_folder(run.run), "jobs", base.parcel),
            (base.result_folder(run.run), "results", base.result),
        ):
            for first in list_firsts(files, folder):
                looked += 1
                if looked > MOST_PARCELS:
                    yield Finding("note", f"only the newest {MOST_PARCELS} parcels were looked at")
                    return
                yield from _parcel(files, path(run.run, first), kind)
        yield from _append_log(files, base, run.run)


def _parcel(files: LocalFiles, path: str, kind: str) -> Iterator[Finding]:
    try:
        count_jobs(files, path, kind)
    except BadFileError as error:
        yield Finding(
            "error", f"a bad parcel: {error}", "its jobs fail or run again; look at the disk"
        )


def _append_log(files: LocalFiles, base: Base, run: str) -> Iterator[Finding]:
    try:
        lost = lost_jobs(files, base, run)
    except BadFileError as error:
        yield Finding("error", f"a bad roll: {error}", "its run stands still; look at the disk")
        return
    if lost:
        yield Finding(
            "error",
            f"the roll of run {run} has lost {len(lost)} jobs, the first is {lost[0]}",
            "they fail when it is their turn; look at the disk",
        )


def _orphans(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    known = {run.run for run in seen.runs}
    orphans = [
        name
        for name in os.listdir(base.result_pool)
        if name not in known
        and is_plain_name(name)
        and any(number_of(entry) is not None for entry in os.listdir(f"{base.result_pool}/{name}"))
    ]
    if orphans:
        yield Finding(
            "note",
            f"{len(orphans)} folders of results belong to no run, such as {orphans[0]}",
            "their run was removed; remove them too when nobody needs them",
        )


def _rejected(base: Base, _: BaseSnapshot) -> Iterator[Finding]:
    count = sum(name.endswith(".reason") for name in os.listdir(base.rejected))
    if count:
        yield Finding(
            "warning", f"{count} bad files were put aside", f"read '{base.rejected}'/*.reason"
        )


def _cards() -> Iterator[Finding]:
    from ..gpus.cards import inventory

    try:
        cards = inventory.cards()
    except GpuError as error:
        yield Finding("error", f"the cards cannot be asked: {error}", "look at nvidia-smi")
        return
    if not cards:
        yield Finding("note", "no GPU in sight: sessions run on the CPU")
    for card in cards:
        if card.problem:
            yield Finding("error", f"GPU {card.index} ({card.name}): {card.problem}")
