"""A simulated filesystem: whatever was not synced may be lost, torn or reordered.

It is as bad as POSIX and power cuts allow, and no worse: a name that was there before a listing
began and after it ended is listed; a rename happens or does not; what `fsync` promised is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from postroom.errors import BadFileError
from postroom.parcel.container import Buffer
from postroom.store.files import LETTER_LIMIT

from .processes import Process

if TYPE_CHECKING:
    from .commands import Command


class Node:
    """A file: its bytes now, and those that would survive a power loss."""

    __slots__ = ("data", "holders", "links", "stable", "writer")

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.stable: bytes | None = None
        self.links = 0
        self.holders: list[SimulatedLock] = []
        self.writer: Process | None = None  # the process in a write that no other may split


class Folder:
    """A folder: its names now, and those that would survive a power loss."""

    __slots__ = ("entries", "stable")

    def __init__(self) -> None:
        self.entries: dict[str, Node | Folder] = {}
        self.stable: dict[str, Node | Folder] = {}


# One change of names: all of it survives a power loss, or none.
Change = list[tuple[Folder, str, "Node | Folder | None"]]


class Disk:
    """The state that all simulated processes share."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.root = Folder()
        self.full = False
        self.starved = False  # no process of the machine gets a descriptor
        self.listing_lag = 0.0  # how often a listing of runs is an earlier one
        self._old_listings: dict[str, list[str]] = {}
        self._unsynced: list[Change] = []
        self.named: Callable[[Folder, str], None] = lambda folder, name: None  # told of new names

    def folder(self, path: str) -> Folder:
        """Find a folder by its path."""
        folder = self.root
        for name in path.split("/")[1:]:
            child = folder.entries.get(name)
            if not isinstance(child, Folder):
                raise _error(errno.ENOENT if child is None else errno.ENOTDIR, path)
            folder = child
        return folder

    def place(self, path: str) -> tuple[Folder, str]:
        """The folder of a path, and the name in it."""
        parent, _, name = path.rpartition("/")
        return self.folder(parent), name

    def file(self, path: str) -> Node:
        """Find a file by its path."""
        folder, name = self.place(path)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Folder):
            raise BadFileError(path, "is not a regular file")
        return node

    def change(self, *bindings: tuple[Folder, str, Node | Folder | None]) -> None:
        """Bind names to files or to nothing, all at once."""
        for folder, name, node in bindings:
            before = folder.entries.pop(name, None)
            if isinstance(before, Node):
                before.links -= 1
            if node is not None:
                folder.entries[name] = node
            if isinstance(node, Node):
                node.links += 1
            if node is not None:
                self.named(folder, name)
        self._unsynced.append(list(bindings))

    def sync_names(self, folder: Folder) -> None:
        """Make the names in a folder survive."""
        rest = []
        for change in self._unsynced:
            if any(touched is folder for touched, _, _ in change):
                _apply(change)
            else:
                rest.append(change)
        self._unsynced = rest

    def sync_everything(self) -> None:
        """Bring all to the disk: where a story begins."""
        for change in self._unsynced:
            _apply(change)
        self._unsynced = []

    def lose_power(self) -> None:
        """Forget locks, and let chance decide about everything that was not synced."""
        survives = self.rng.choice((0.0, 0.5, 0.9, 1.0))
        for change in self._unsynced:
            if self.rng.random() < survives:
                _apply(change)
        self._unsynced = []
        self._old_listings = {}
        self.full = False
        links: dict[int, int] = {}
        self._restore(self.root, links, survives)

    def _restore(self, folder: Folder, links: dict[int, int], survives: float) -> None:
        folder.entries = dict(folder.stable)
        for node in folder.entries.values():
            if isinstance(node, Folder):
                self._restore(node, links, survives)
                continue
            if id(node) not in links:
                if node.stable != node.data and self.rng.random() >= survives:
                    node.data = self._torn(node)
                node.stable = node.data
                node.holders = []
                node.writer = None
            links[id(node)] = node.links = links.get(id(node), 0) + 1

    def _torn(self, node: Node) -> bytes:
        earlier = node.stable or b""
        # What was synced stays, where the file has only grown since.
        kept = len(earlier) if node.data.startswith(earlier) else 0
        data = node.data[kept:]
        cut = self.rng.randrange(len(data) + 1)
        zeros = bytes(len(data) - cut)
        torn = self.rng.choice([b"", data[:cut], bytes(cut) + data[cut:], data[:cut] + zeros])
        return earlier[:kept] + torn if kept or torn else earlier

    def listing(self, path: str, process: Process) -> list[str]:
        """List a folder while others change it."""
        try:
            folder = self.folder(path)
        except FileNotFoundError:
            return []
        before = dict.fromkeys(folder.entries)
        process.point()
        names = [
            name
            for name in dict.fromkeys([*before, *folder.entries])
            if (name in before and name in folder.entries) or self.rng.random() < 0.5
        ]
        # Runs may be found late, so late it is.
        if path.endswith("/job_pool"):
            if path in self._old_listings and self.rng.random() < self.listing_lag:
                return self._old_listings[path]
            self._old_listings[path] = names
        return names


class SimulatedLock:
    """flock(2): belongs to an open file, lives as long as a process that has it open."""

    def __init__(self, node: Node, process: Process, *, shared: bool) -> None:
        self.node = node
        self.shared = shared
        self.owners: list[Process | Command] = [process]

    @property
    def held(self) -> bool:
        """Whether somebody living has it."""
        return self in self.node.holders and any(owner.alive for owner in self.owners)

    def lose(self) -> None:
        """Free it although its owners live, as a network filesystem may."""
        self.node.holders = [lock for lock in self.node.holders if lock is not self]

    def hand_down(self, process: Process | Command) -> None:
        """Let a child have it too."""
        self.owners.append(process)

    def close(self, process: Process) -> None:
        """Close the descriptor of one of those that have it."""
        self.owners.remove(process)

    def release(self) -> None:
        """Let go; for a dead process Linux has done so already."""
        if self in self.node.holders and self.owners[0].alive:
            self.node.holders.remove(self)


class SimulatedBox:
    """A mailbox through an open descriptor."""

    def __init__(self, files: SimulatedFiles, node: Node) -> None:
        self._files = files
        self._node = node

    def size(self) -> int:
        self._files.operation()
        return len(self._node.data)

    def read(self) -> bytes:
        self._files.operation()
        return self._node.data[:LETTER_LIMIT]

    def write(self, letter: bytes) -> None:
        self._put(letter, 0)

    def append(self, line: bytes) -> None:
        self._put(line, len(self._node.data))

    def patch(self, at: int, word: bytes) -> None:
        self._files.operation()
        assert len(word) == 8 and at + 8 <= len(self._node.data)
        self._node.data = self._node.data[:at] + word + self._node.data[at + 8 :]

    def _put(self, data: bytes, at: int) -> None:
        self._files.operation()
        cut = self._files.disk.rng.randrange(len(data))
        for piece in (data[:cut], data):
            self._node.data = self._node.data[:at] + piece + self._node.data[at + len(piece) :]
            if piece is not data:
                # Here a reader sees half of it, and a writer that dies or fails leaves it.
                self._files.operation(grows=len(self._node.data) < at + len(data))

    def clear(self) -> None:
        self._files.operation()
        self._node.data = b""

    def gone(self) -> bool:
        self._files.operation()
        return self._node.links == 0

    def close(self) -> None:
        pass


class SimulatedAppendFile:
    """An append log through an open descriptor."""

    def __init__(self, files: SimulatedFiles, node: Node) -> None:
        self._files = files
        self._node = node

    def size(self) -> int:
        self._files.operation()
        return len(self._node.data)

    def read(self, at: int, size: int) -> bytes:
        self._files.operation()
        return self._node.data[at : at + size]

    def append(self, chunks: Sequence[Buffer]) -> int:
        files, node = self._files, self._node
        files.operation(grows=True)
        while node.writer is not None and node.writer.alive:
            files.process.sleep(0.0001)  # Linux lets one write after the other
        data = b"".join(chunks)
        at = len(node.data)
        cut = files.disk.rng.randrange(len(data) + 1)
        node.writer = files.process
        node.data += data[:cut]
        try:
            # Here a reader sees half a record, and a writer that dies or fails leaves it.
            files.operation(grows=True)
            node.data += data[cut:]
        finally:
            if files.process.alive:
                node.writer = None
        return at

    def sync(self) -> None:
        self._files.operation()
        self._node.stable = self._node.data

    def is_at(self, path: str) -> bool:
        self._files.operation(path)
        return self._node.links > 0

    def give_back(self, at: int, end: int) -> None:
        self._files.operation()
        # At once, on the disk, too: as bad as it can be.
        self._node.data = _cleared(self._node.data, at, end)
        if self._node.stable is not None:
            self._node.stable = _cleared(self._node.stable, at, end)

    def next_data(self, at: int) -> int:
        self._files.operation()
        return len(self._node.data) - len(self._node.data[at:].lstrip(b"\0"))

    def close(self) -> None:
        pass


class SimulatedFiles:
    """The package's `Files`, for one process on a simulated disk."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self.process = process
        self._prepared = ""
        self._blank: Node | None = None  # what is prepared, until it is written
        self._spares: list[str] = []

    def operation(self, path: str = "", *, grows: bool = False, opens: bool = False) -> None:
        """Pause before a system call, which may fail."""
        process = self.process
        process.point()
        if opens and (process.starved or self.disk.starved):
            raise _error(errno.EMFILE if process.starved else errno.ENFILE, path)
        if grows and self.disk.full:
            raise _error(errno.ENOSPC, path)
        if process.fault is not None and process.budget <= 0:
            fault, process.fault = process.fault, None
            raise _error(fault, path)

    def prepare(self, path: str | None) -> None:
        before, self._prepared, self._blank = self._prepared, "", None
        with contextlib.suppress(OSError):
            if before:
                self.remove(before)
        with contextlib.suppress(OSError):
            if path is not None:
                self.operation(path, grows=True, opens=True)
                folder, name = self.disk.place(path)
                self._blank = Node()
                self.disk.change((folder, name, self._blank))
                self._prepared = path

    def has_room(self, folder: str, nbytes: int) -> bool:
        return not self.disk.full

    def write_new(
        self,
        path: str,
        chunks: Sequence[Buffer],
        *,
        sync: bool = False,
        spares: tuple[str, str] | None = None,
        reserve: bool = False,
    ) -> None:
        self.operation(path, grows=True, opens=path != self._prepared)
        data = b"".join(chunks)
        cut = data[: self.disk.rng.randrange(len(data) + 1)]
        if path == self._prepared and self._blank is not None:
            # Through its descriptor: it may have lost its name, and have none to take back.
            node, self._blank = self._blank, None
            node.data = cut
            folder, name = Folder(), ""
            with contextlib.suppress(FileNotFoundError):
                folder, name = self.disk.place(path)
        elif (spare := self._find_spare(spares)) is not None and self.disk.rng.random() < 0.9:
            # Over an older file, whose bytes may be found here after a power loss.
            self.move(spare, path)
            folder, name = self.disk.place(path)
            node = self.disk.file(path)
            node.data = cut
        else:
            folder, name = self.disk.place(path)
            if name in folder.entries:
                raise _error(errno.EEXIST, path)
            node = Node(cut)
            self.disk.change((folder, name, node))
        try:
            self.operation(path, grows=True)
            node.data = data
            if sync:
                self.operation(path)
                node.stable = data
        except OSError:
            if name in folder.entries:
                self.disk.change((folder, name, None))
            raise

    def _find_spare(self, left: tuple[str, str] | None) -> str | None:
        if left is None:
            return self._spares.pop() if self._spares else None
        folder, prefix = left
        names = [name for name in self.disk.folder(folder).entries if name.startswith(prefix)]
        return f"{folder}/{self.disk.rng.choice(names)}" if names else None

    def hand_on(self, path: str, spare: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.move(path, spare)

    def publish(self, temporary: str, final: str) -> bool:
        node = self.disk.file(temporary)
        self.operation(final, grows=True)
        folder, name = self.disk.place(final)
        if node.links == 0:
            raise _error(errno.ENOENT, temporary)  # as link(2) says of a file that lost its name
        won = name not in folder.entries
        if won:
            self.disk.change((folder, name, node))
        # An error here is the lie of a network filesystem: it says it failed, and it worked.
        self.operation(temporary)
        if temporary == self._prepared:
            return won
        with contextlib.suppress(FileNotFoundError):
            folder, name = self.disk.place(temporary)
            if name in folder.entries:
                self.disk.change((folder, name, None))
        return won

    def names(self, folder: str) -> list[str]:
        self.operation(folder, opens=True)
        return self.disk.listing(folder, self.process)

    def read(self, path: str, limit: int) -> bytes:
        self.operation(path, opens=True)
        data = self.disk.file(path).data
        if len(data) > limit:
            raise BadFileError(path, "is too long")
        return data

    def view(self, path: str, limit: int, *, recycled: bool = False) -> Buffer:
        return self.read(path, limit)

    def tail(self, path: str, size: int) -> bytes:
        self.operation(path, opens=True)
        return self.disk.file(path).data[-size:]

    def exists(self, path: str) -> bool:
        self.operation(path)
        try:
            folder, name = self.disk.place(path)
        except FileNotFoundError:
            return False
        return name in folder.entries

    def sizes(self, folder: str) -> Iterator[tuple[str, int, float]]:
        for name in self.names(folder):
            with contextlib.suppress(FileNotFoundError):
                node = self.disk.folder(folder).entries.get(name)
                if isinstance(node, Folder):
                    yield from self.sizes(f"{folder}/{name}")
                elif node is not None:
                    yield name, len(node.data), 0.0

    def disk_space(self, folder: str) -> tuple[int, int]:
        self.operation(folder)
        return (0 if self.disk.full else 1 << 40), 1 << 41

    def make_folder(self, path: str) -> None:
        self.operation(path, grows=True)
        folder, name = self.disk.place(path)
        if name not in folder.entries:
            self.disk.change((folder, name, Folder()))

    def move(self, source: str, target: str) -> None:
        self.operation(target, grows=True)
        folder, name = self.disk.place(source)
        node = folder.entries.get(name)
        if node is None:
            raise _error(errno.ENOENT, source)
        self.disk.change((folder, name, None), (*self.disk.place(target), node))

    def remove(self, path: str) -> None:
        self.operation(path)
        folder, name = self.disk.place(path)
        if name in folder.entries:
            self.disk.change((folder, name, None))

    def remove_tree(self, path: str) -> None:
        self.operation(path, opens=True)
        with contextlib.suppress(FileNotFoundError):
            folder, name = self.disk.place(path)
            node = folder.entries.get(name)
            while isinstance(node, Folder) and node.entries:
                self.remove_tree(f"{path}/{self.disk.rng.choice(list(node.entries))}")
            if name in folder.entries:
                self.disk.change((folder, name, None))

    def recycle(self, path: str, temporary: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.move(path, temporary)
            self._spares.append(temporary)

    def remove_spares(self) -> None:
        while self._spares:
            self.remove(self._spares.pop())

    def let_go(self, path: str) -> None:
        """Memory is no part of the simulation."""

    def save_soon(self, path: str) -> None:
        """Nobody can rely on it."""

    def touch(self, path: str) -> None:
        self.operation(path)

    def sync_file(self, path: str) -> None:
        self.operation(path, opens=True)
        node = self.disk.file(path)
        node.stable = node.data

    def sync_folder(self, path: str) -> None:
        self.operation(path, opens=True)
        self.disk.sync_names(self.disk.folder(path))

    def try_lock(self, path: str, *, shared: bool = False) -> SimulatedLock | None:
        self.operation(path, opens=True)
        folder, name = self.disk.place(path)
        if name not in folder.entries:
            self.disk.change((folder, name, Node()))
        node = self.disk.file(path)
        node.holders = [lock for lock in node.holders if lock.held]
        if node.holders and not (shared and all(lock.shared for lock in node.holders)):
            return None
        lock = SimulatedLock(node, self.process, shared=shared)
        node.holders.append(lock)
        return lock

    def create_box(self, path: str) -> SimulatedBox:
        self.operation(path, grows=True, opens=True)
        folder, name = self.disk.place(path)
        if name in folder.entries:
            raise _error(errno.EEXIST, path)
        node = Node()
        self.disk.change((folder, name, node))
        return SimulatedBox(self, node)

    def open_box(self, path: str) -> SimulatedBox | None:
        self.operation(path, opens=True)
        try:
            return SimulatedBox(self, self.disk.file(path))
        except FileNotFoundError:
            return None

    def make_append_file(self, path: str) -> SimulatedAppendFile:
        self.operation(path, grows=True, opens=True)
        folder, name = self.disk.place(path)
        if name not in folder.entries:
            self.disk.change((folder, name, Node()))
        return SimulatedAppendFile(self, self.disk.file(path))

    def open_append_file(self, path: str) -> SimulatedAppendFile | None:
        self.operation(path, opens=True)
        try:
            return SimulatedAppendFile(self, self.disk.file(path))
        except FileNotFoundError:
            return None


def _cleared(data: bytes, at: int, end: int) -> bytes:
    return data[:at] + bytes(len(data[at:end])) + data[end:]


def _apply(change: Change) -> None:
    for folder, name, node in change:
        folder.stable.pop(name, None)
        if node is not None:
            folder.stable[name] = node


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
