"""The files of the working folder as they were when commands were submitted.

    job_pool/<run>/<name>.tar       all of them, named by their content; never changed
    <folder of the job>/snapshot/   one attempt's own copy of them, in which it runs

All files are taken but those that git ignores. Each attempt unpacks a copy of its own, so it finds
the files as they were submitted, whatever it or another job writes. When it has ended, the files
that it did not touch are deleted from the copy: what stays is what it wrote.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import PostroomError
from ..store.base import Base
from ..store.files import Files
from ..system.regular_file import private

MOST_BYTES = 1 << 30


class SnapshotError(PostroomError):
    """A snapshot cannot be taken, or cannot be used."""


@dataclass(frozen=True)
class CodeSnapshot:
    """The files of a folder in an archive, which the runs that need it link."""

    name: str
    path: str
    source: str  # the folder

    def put(self, files: Files, base: Base, run: str) -> None:
        """Store it in a run, which the caller keeps from being removed.

        It takes the place of one that is there, which somebody may have changed.
        """
        temporary = base.temporary()
        try:
            os.link(self.path, temporary)
        except FileNotFoundError:
            raise SnapshotError(f"the snapshot {self.path} is missing: submit again") from None
        files.move(temporary, base.code_snapshot(run, self.name))
        files.remove(temporary)  # which is still there if both were the same file
        files.sync_folder(base.run_folder(run))


@contextlib.contextmanager
def take_snapshot(
    source: str, base: Base, *, most_bytes: int = MOST_BYTES
) -> Iterator[CodeSnapshot]:
    """Put the files of a folder into an archive in `tmp/`, which is gone when the block ends."""
    source = os.path.abspath(source)
    path = base.temporary()
    try:
        try:
            _pack(source, list_files(source, skip=_output_of(base.root)), path, most_bytes)
            snapshot = CodeSnapshot(_digest(path), path, source)
        except OSError as error:
            raise SnapshotError(f"a snapshot of {source} cannot be taken: {error}") from None
        yield snapshot
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _pack(source: str, names: list[str], path: str, most_bytes: int) -> None:
    sizes = {name: os.lstat(f"{source}/{name}").st_size for name in names}
    if sum(sizes.values()) > most_bytes:
        largest = sorted(sizes, key=sizes.__getitem__)[-3:][::-1]
        shown = ", ".join(f"{name} ({sizes[name] >> 20} MiB)" for name in largest)
        raise SnapshotError(
            f"a snapshot of {source} would take {sum(sizes.values()) >> 20} MiB, more than "
            f"{most_bytes >> 20}; have git ignore what jobs do not need: {shown}"
        )
    with open(path, "xb", opener=private) as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in names:
                _add(archive, source, name)
        file.flush()
        os.fsync(file.fileno())


def _add(archive: tarfile.TarFile, source: str, name: str) -> None:
    """Add one file; not by `archive.add`, which stores a file with two names as a link."""
    path = f"{source}/{name}"
    member, status = tarfile.TarInfo(name), os.lstat(path)
    member.mode, member.mtime = status.st_mode & 0o777, status.st_mtime
    if stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        archive.addfile(member)
    else:
        with open(path, "rb") as file:
            member.size = os.fstat(file.fileno()).st_size
            archive.addfile(member, file)


def list_files(folder: str, *, skip: str = "") -> list[str]:
    """The files below a folder that git does not ignore; without git, all but hidden ones."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        found = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    else:
        found = set(_walk(folder))
    return sorted(
        name
        for name in found
        if not (skip and f"{folder}/{name}".startswith(skip + "/"))
        and (os.path.isfile(f"{folder}/{name}") or os.path.islink(f"{folder}/{name}"))
    )


def _walk(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in files:
            if not name.startswith("."):
                yield os.path.relpath(f"{parent}/{name}", folder)


def _output_of(root: str) -> str:
    """The folder of a base, or of the batch that it belongs to, which is no part of a snapshot."""
    return root.removesuffix("/.base")


def _digest(path: str) -> str:
    """The name of an archive: from the names, the contents and the executable bits of its files."""
    whole = hashlib.sha256()
    with tarfile.open(path) as archive:
        for member in archive:
            content = os.fsencode(member.linkname)
            if not member.issym():
                content = hashlib.file_digest(_reader(archive, member), "sha256").digest()
            whole.update(repr((member.name, member.mode & 0o111, content)).encode())
    return whole.hexdigest()[:32]


def _reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tarfile.ExFileObject:
    found = archive.extractfile(member)
    assert isinstance(found, tarfile.ExFileObject), "it is a file"
    return found


class UnpackedSnapshot:
    """One attempt's copy of a snapshot."""

    def __init__(self, path: str, name: str, place: str, cwd: str) -> None:
        self._path, self._name, self._place = path, name, place
        self._cwd = cwd  # in that place: git knows no empty folder, and the command runs in it
        self._made: dict[str, tuple[int, ...]] = {}

    def unpack(self) -> None:
        """Write the files, as they were submitted, into a new folder."""
        try:
            if _digest(self._path) != self._name:
                raise SnapshotError(
                    f"the snapshot {self._path} was changed since it was taken: submit again"
                )
        except FileNotFoundError:
            raise SnapshotError(f"the snapshot {self._path} is missing: submit again") from None
        except tarfile.TarError as error:
            raise SnapshotError(f"the snapshot {self._path} is damaged ({error})") from None
        try:
            os.mkdir(self._place)
            with tarfile.open(self._path) as archive:
                for member in archive:
                    self._write(archive, member)
            os.makedirs(self._cwd, exist_ok=True)
        except BaseException:
            shutil.rmtree(self._place, ignore_errors=True)
            raise

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = f"{self._place}/{member.name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if member.issym():
            os.symlink(member.linkname, path)
        else:
            with open(path, "xb", opener=lambda p, flags: os.open(p, flags, member.mode)) as file:
                shutil.copyfileobj(_reader(archive, member), file)
            os.utime(path, (member.mtime, member.mtime))
        self._made[path] = _mark(path)

    def prune(self) -> None:
        """Delete what the attempt did not touch, and what Python has compiled from that."""
        for path, mark in self._made.items():
            with contextlib.suppress(OSError):
                if _mark(path) == mark:
                    os.unlink(path)
        folders = {self._place}
        for path in (*self._made, f"{self._cwd}/."):
            while (path := os.path.dirname(path)) not in folders:
                folders.add(path)
        real = os.path.realpath(self._place)
        for folder in sorted(folders, key=len, reverse=True):
            if os.path.realpath(folder) != real + folder.removeprefix(self._place):
                continue  # the command has put a link in its place, to files of others
            shutil.rmtree(f"{folder}/__pycache__", ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _mark(path: str) -> tuple[int, ...]:
    """Changes whenever a file does: its time of change alone may be that of the same tick."""
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns


def changes(path: str, source: str) -> Iterator[str]:
    """What has changed in a folder since its files were put into an archive, as a unified diff."""
    import difflib

    before: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                before[member.name] = b"" if member.issym() else _reader(archive, member).read()
    except (OSError, tarfile.TarError) as error:
        raise SnapshotError(f"the snapshot {path} cannot be read: {error}") from None
    output = _output_of(path.partition("/job_pool/")[0])
    for name in sorted({*before, *list_files(source, skip=output)}):
        old, new = before.get(name, b""), _content(f"{source}/{name}")
        if old == new:
            continue
        try:
            one, other = (side.decode().splitlines(keepends=True) for side in (old, new))
            yield from difflib.unified_diff(one, other, f"snapshot/{name}", f"now/{name}")
        except UnicodeDecodeError:
            yield f"binary files snapshot/{name} and now/{name} differ\n"


def _content(path: str) -> bytes:
    if os.path.islink(path):
        return b""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, IsADirectoryError):
        return b""
