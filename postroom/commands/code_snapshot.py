"""A copy of the working folder as it was when commands were submitted.

    <output>/.snapshots/<digest>/files/...     the copy, in which jobs run
    <output>/.snapshots/<digest>/source        the folder that was copied

All files are copied but those that git ignores. A snapshot is named by its content, so the same
files are copied only once, however often a batch is repeated.
"""

from __future__ import annotations

import filecmp
import hashlib
import io
import os
import shutil
import subprocess
from collections.abc import Iterator

from ..errors import PostroomError
from ..store.files import new_token
from ..system.regular_file import open_regular

MOST_BYTES = 1 << 30
FOLDER = ".snapshots"


class SnapshotError(PostroomError):
    """A snapshot cannot be taken, or does not exist."""


def take_snapshot(source: str, output: str, *, most_bytes: int = MOST_BYTES) -> str:
    """Copy a folder's files, unless the same copy exists; return the folder of the copy."""
    source = os.path.abspath(source)
    names = list_files(source, skip=os.path.abspath(output))
    sizes = {name: os.lstat(f"{source}/{name}").st_size for name in names}
    if sum(sizes.values()) > most_bytes:
        largest = sorted(sizes, key=sizes.__getitem__)[-3:][::-1]
        shown = ", ".join(f"{name} ({sizes[name] >> 20} MiB)" for name in largest)
        raise SnapshotError(
            f"a snapshot of {source} would take {sum(sizes.values()) >> 20} MiB, more than "
            f"{most_bytes >> 20}; have git ignore what jobs do not need: {shown}"
        )
    store = f"{output}/{FOLDER}"
    os.makedirs(store, exist_ok=True)
    temporary = f"{store}/new-{new_token(12)}"
    try:
        for name in names:
            target = f"{temporary}/files/{name}"
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(f"{source}/{name}", target, follow_symlinks=False)
        os.makedirs(f"{temporary}/files", exist_ok=True)
        # Of the copy, not of the source: files may have been edited in between.
        place = f"{store}/{_digest(f'{temporary}/files', names)}"
        with open(f"{temporary}/source", "x", encoding="utf-8") as file:
            file.write(f"{source}\n")
        if not os.path.isdir(place):
            os.rename(temporary, place)
        return f"{place}/files"
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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


def _digest(folder: str, names: list[str]) -> str:
    whole = hashlib.sha256()
    for name in names:
        path = f"{folder}/{name}"
        if os.path.islink(path):
            content = os.fsencode(os.readlink(path))
        else:
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
        executable = os.lstat(path).st_mode & 0o111
        whole.update(repr((name, executable, content)).encode())
    return whole.hexdigest()[:16]


def changes(copy: str) -> Iterator[str]:
    """What has changed in the source since a snapshot was taken, as a unified diff."""
    import difflib

    try:
        with open(f"{os.path.dirname(copy)}/source", encoding="utf-8") as file:
            source = file.read().strip()
    except OSError:
        raise SnapshotError(f"{copy} is no snapshot: was the batch run with --snapshot?") from None
    before = {os.path.relpath(f"{p}/{n}", copy) for p, _, names in os.walk(copy) for n in names}
    output = os.path.dirname(os.path.dirname(os.path.dirname(copy)))
    for name in sorted(before | set(list_files(source, skip=output))):
        old, new = f"{copy}/{name}", f"{source}/{name}"
        if os.path.isfile(old) and os.path.isfile(new) and filecmp.cmp(old, new, shallow=False):
            continue
        try:
            yield from difflib.unified_diff(
                _text(old), _text(new), f"snapshot/{name}", f"now/{name}"
            )
        except UnicodeDecodeError:
            yield f"binary files snapshot/{name} and now/{name} differ\n"


def _text(path: str) -> list[str]:
    try:
        with open_regular(path) as file:
            return io.TextIOWrapper(file, "utf-8").readlines()
    except OSError:
        return []
