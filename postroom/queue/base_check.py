"""Checks a base for problems, for `postroom doctor`. It changes nothing."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import BadFileError, BaseFolderError, GpuError, OtherVersionError
from ..store.append_log import lost_jobs
from ..store.base import FOLDERS, OUTBOX, Base, number_of, open_base
from ..store.files import LocalFiles
from ..store.mailbox import is_plain_name, read_letter
from ..store.requests import no_orders, pending, read_orders, read_request
from ..store.retention import read_settings_of, retention_of
from ..store.runs import count_jobs, list_firsts, list_runs, read_run_info
from ..store.snapshot import DEAD, BaseSnapshot, snapshot
from ..system import cgroups
from ..system.filesystem import filesystem_of
from ..system.oom_kills import OOM_MESSAGE
from ..system.processes import describe_pid, is_stopped
from .disk_usage import look, usage_line

# Filesystems on which file locks and hard links work as the protocol needs.
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "bcachefs"}
LOW_SPACE = 1 << 30
LOW_INODES = 10_000
STALE_S = 24 * 3600.0
# Reading every parcel of a long history would take too long.
MOST_PARCELS = 10_000


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    level: str  # "ok", "note", "warning", "error"
    what: str
    advice: str = ""  # what to do


def examine(root: str | os.PathLike[str]) -> Iterator[Finding]:
    """Check a base; yields each finding as soon as it is known."""
    try:
        base = open_base(root, write=False)
    except BaseFolderError as error:
        yield Finding("error", str(error))
        return
    yield Finding(
        "ok", f"{base.root} is a base of this version of Postroom and private to this user"
    )
    for check in (
        _folders,
        _filesystem,
        _locks,
        _space,
        _usage,
        _watches,
        _groups,
        _temporaries,
        _modes,
    ):
        yield from check(base)
    seen = snapshot(base)
    for check_with in (_master, _agents, _runs, _orders, _parcels, _orphans, _rejected):
        yield from check_with(base, seen)
    yield from _cards()


def _folders(base: Base) -> Iterator[Finding]:
    missing = [folder for folder in FOLDERS if not os.path.isdir(f"{base.root}/{folder}")]
    if missing:
        yield Finding(
            "error",
            f"folders are missing: {', '.join(missing)}",
            f"create them: cd '{base.root}' && mkdir -m 700 {' '.join(missing)}",
        )


def _filesystem(base: Base) -> Iterator[Finding]:
    kind = filesystem_of(base.root) or "unknown"
    if kind in LOCAL:
        yield Finding("ok", f"the filesystem is {kind}: file locks and hard links work")
    else:
        yield Finding(
            "warning",
            f"the filesystem is {kind}: file locks, hard links or file events may not work",
            "put the base on a local disk; you can copy results to the network later",
        )


def _locks(base: Base) -> Iterator[Finding]:
    """Locks of two descriptors must exclude each other; tried on FORMAT, which nobody locks."""
    one, other = (os.open(base.format, os.O_RDONLY | os.O_NOFOLLOW) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Finding(
                "error",
                "two locks on one file do not exclude each other",
                "put the base on a local disk",
            )
        except BlockingIOError:
            yield Finding("ok", "file locks exclude each other")
    except OSError as error:
        yield Finding(
            "error", f"cannot lock a file: {error.strerror}", "put the base on a local disk"
        )
    finally:
        os.close(one)
        os.close(other)


def _space(base: Base) -> Iterator[Finding]:
    status = os.statvfs(base.root)
    free = status.f_bavail * status.f_frsize
    if free < LOW_SPACE:
        yield Finding(
            "warning",
            f"only {free / 2**20:.0f} MiB of disk space are free",
            "free some space, for example with: postroom clean; on a full disk, jobs wait",
        )
    else:
        yield Finding("ok", f"{free / 2**30:.1f} GiB of disk space are free")
    if status.f_files and status.f_favail < LOW_INODES:
        yield Finding(
            "warning", f"only {status.f_favail} inodes are free", "delete small files on this disk"
        )
    if status.f_flag & os.ST_RDONLY:
        yield Finding("error", "the filesystem is read-only", "mount it writable")


def _usage(base: Base) -> Iterator[Finding]:
    files = LocalFiles()
    usage = look(files, base, store=False)
    if usage.at:
        kept = retention_of(files, base, disk_bytes=files.disk_space(base.root)[1])
        text = f"{usage_line(files, base, usage)}; results of programs stay {kept}"
        yield Finding("ok", text.removeprefix("disk: "))
    try:
        read_settings_of(files, base)
    except BadFileError as error:
        yield Finding(
            "warning",
            f"the retention of this base cannot be read, so nothing is removed: {error}",
            "set it again: postroom retention --default",
        )


def _watches(base: Base) -> Iterator[Finding]:
    from ..system.file_events import Waiter

    waiter = Waiter([base.agent_pool])
    waiter.wait(0.0, lambda: False)
    if waiter.blind:
        yield Finding(
            "warning",
            "no file events (inotify): everything works, but more slowly",
            "raise the limit: sysctl fs.inotify.max_user_instances=1024",
        )
    else:
        yield Finding("ok", "file events (inotify) work")
    waiter.close()


def _groups(base: Base) -> Iterator[Finding]:
    path = cgroups.make(f"{base.root}:doctor")
    if path:
        os.rmdir(path)
        yield Finding("ok", "cgroups work: a command is ended with all its processes")
    else:
        yield Finding(
            "note",
            "no cgroups: the processes of a command are found by their parents and environment",
            "start agents with systemd-run --user --scope, to find all processes in any case",
        )


def _temporaries(base: Base) -> Iterator[Finding]:
    stale = 0
    for name in os.listdir(base.tmp):
        if name.startswith(OUTBOX):
            continue  # a worker's outbox may be idle for long
        try:
            age_s = time.time() - os.lstat(f"{base.tmp}/{name}").st_mtime
        except FileNotFoundError:
            continue
        stale += age_s > STALE_S
    if stale:
        yield Finding(
            "note",
            f"tmp/ has {stale} files older than a day, left by killed processes",
            f"delete them: find '{base.tmp}' -maxdepth 1 -type f -mtime +1 -delete",
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
            f"other users can read {', '.join(loose)}",
            f"make it private: chmod -R go-rwx '{base.root}'",
        )


def _master(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    waiting = sum(run.asked - run.done for run in seen.runs)
    if seen.master is not None and is_stopped(seen.master.process):
        yield Finding(
            "error",
            f"the scheduler (pid {seen.master.pid}) is stopped, and no other can take over",
            f"continue it: kill -CONT {seen.master.pid} (or fg in its terminal); or end it",
        )
    elif seen.master is not None:
        yield Finding("ok", f"the scheduler is running ({seen.master.pid_words})")
    elif waiting:
        yield Finding(
            "note",
            f"{waiting} jobs are not done, and no scheduler is running",
            f"start it: postroom master '{base.root}' --detach; what is left of a program that is "
            "gone: postroom jobs --state abandoned",
        )


def _agents(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    waiting = sum(run.asked - run.done for run in seen.runs)
    if waiting and all(agent.state in DEAD for agent in seen.agents):
        yield Finding(
            "note",
            f"{waiting} jobs are not done, and no agent is running",
            f"start one: postroom agents start 1 '{base.root}'",
        )
    for agent in seen.agents:
        if agent.state == "dead":
            yield Finding(
                "warning",
                f"agent {agent.agent} is dead and left its files",
                "nothing is lost: the scheduler or the next session requeues its jobs",
            )
        elif agent.state == "missing" and seen.master is not None:
            yield Finding(
                "warning",
                f"agent {agent.agent} is wanted, and is not running: {agent.note}",
                "the scheduler starts it again and again; if it is not to run, remove it: "
                f"postroom agents remove '{base.root}' {agent.agent}",
            )
        elif agent.state == "orphaned":
            yield Finding(
                "warning",
                f"agent {agent.agent} is dead, but processes of its job go on "
                f"(it ran on host {agent.host}, perhaps in another container)",
                "its jobs are requeued when those have ended; to end them now, end that container, "
                f"or in it every process that has {base.agent_tree(agent.agent)} open",
            )
        elif agent.state == "blocked":
            yield Finding(
                "error",
                f"agent {agent.agent} cannot write its results",
                "free disk space; the results wait in its memory",
            )
        elif agent.state == "out of memory":
            yield Finding(
                "warning",
                f"agent {agent.agent} pauses: {OOM_MESSAGE}",
                "its GPU is fine; it goes on by itself, after a longer pause each time. Stop some "
                f"agents (postroom agents stop '{base.root}' AGENT), or make the jobs smaller",
            )
        elif agent.state == "outdated":
            yield Finding(
                "error",
                f"agent {agent.agent} has another version of Postroom, and gets no jobs",
                f"restart it; first stop it: postroom agents stop '{base.root}' {agent.agent}",
            )
        else:
            where = describe_pid(agent.pid, agent.pid_namespace, agent.host)
            yield Finding("ok", f"agent {agent.agent} is {agent.state} ({where})")


def _runs(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    files = LocalFiles()
    known = set(list_runs(files, base))
    for run in sorted(known):
        try:
            read_run_info(files, base, run)
        except OtherVersionError as error:
            yield _other_version(error)
        except (FileNotFoundError, BadFileError) as error:
            yield Finding(
                "error",
                f"run {run} cannot be read: {error}",
                "its jobs do not run; look for disk errors",
            )
    for agent in seen.agents:
        letter = read_letter(files, base, agent.agent)
        if letter is not None and letter.run not in known:
            yield Finding(
                "warning",
                f"agent {agent.agent} works on run {letter.run}, which does not exist",
                f"stop it with: postroom agents stop '{base.root}' {agent.agent} --now",
            )


def _other_version(error: OtherVersionError) -> Finding:
    return Finding(
        "error", str(error), "nothing of it is used or changed; use one version on this base"
    )


def _orders(base: Base, _: BaseSnapshot) -> Iterator[Finding]:
    """Orders that cannot be read stop everything; requests of another version wait."""
    files = LocalFiles()
    try:
        read_orders(files, base)
    except BadFileError as error:
        yield Finding("error", no_orders(error))
    for name in pending(files, base):
        try:
            read_request(files, base, name)
        except OtherVersionError as error:
            yield _other_version(error)
        except (FileNotFoundError, BadFileError):
            pass  # it was carried out, or will be put aside


def _parcels(base: Base, seen: BaseSnapshot) -> Iterator[Finding]:
    """The trailer of every parcel must match its file name."""
    files = LocalFiles()
    checked = 0
    for run in reversed(seen.runs):
        for first in list_firsts(files, base.result_folder(run.run)):
            checked += 1
            if checked > MOST_PARCELS:
                yield Finding("note", f"only the newest {MOST_PARCELS} parcels were checked")
                return
            yield from _parcel(files, base.result(run.run, first))
        yield from _append_log(files, base, run.run)


def _parcel(files: LocalFiles, path: str) -> Iterator[Finding]:
    try:
        count_jobs(files, path)
    except OtherVersionError as error:
        yield _other_version(error)
    except BadFileError as error:
        yield Finding(
            "error", f"a bad parcel: {error}", "its jobs fail or run again; look for disk errors"
        )


def _append_log(files: LocalFiles, base: Base, run: str) -> Iterator[Finding]:
    try:
        lost = lost_jobs(files, base, run, recycled=read_run_info(files, base, run).recycled)
    except FileNotFoundError:
        return  # it is being removed
    except OtherVersionError as error:
        yield _other_version(error)
        return
    except BadFileError as error:
        yield Finding(
            "error", f"a bad append log: {error}", "its run makes no progress; look for disk errors"
        )
        return
    if lost:
        yield Finding(
            "error",
            f"the append log of run {run} has lost {len(lost)} jobs, the first is {lost[0]}",
            "they will fail; submit them again, and look for disk errors",
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
            f"{len(orphans)} result folders belong to no run, such as {orphans[0]}",
            f"their runs were removed; delete them when nobody needs them: '{base.result_pool}'",
        )


def _rejected(base: Base, _: BaseSnapshot) -> Iterator[Finding]:
    count = sum(name.endswith(".reason") for name in os.listdir(base.rejected))
    if count:
        yield Finding(
            "warning",
            f"{count} bad files were moved to rejected/",
            f"see why: cat '{base.rejected}'/*.reason",
        )


def _cards() -> Iterator[Finding]:
    from ..gpus.cards import inventory
    from ..gpus.ledger.protocol import open_ledger

    try:
        cards = inventory.cards()
        quarantined = open_ledger().quarantined()
    except GpuError as error:
        advice = "check that nvidia-smi works, and look at: postroom gpu list"
        yield Finding("error", f"cannot see the GPUs and who uses them: {error}", advice)
        return
    if not cards:
        yield Finding("note", "no GPU found: agents run jobs on the CPU")
    for card in cards:
        if card.problem:
            advice = "restart the machine, or start agents on other GPUs"
            yield Finding("error", f"GPU {card.index} ({card.name}): {card.problem}", advice)
        if card.uuid in quarantined:
            mark = quarantined[card.uuid]
            yield Finding(
                "warning",
                f"GPU {card.index} ({card.name}) is quarantined by {mark.user}: {mark.reason}",
                f"if it is well, give it work again: postroom gpu heal {card.index}",
            )
