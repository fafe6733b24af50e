"""Two versions of Postroom on one base, while a machine is being updated; and orders that rot.

A later version adds a field to every JSON record that it writes, and reads records with and without
it. Today's code, beside it, is the older one. When the world calms down, everybody is updated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from postroom.dispatch.resting import CALL
from postroom.parcel.container import Buffer
from postroom.store.mailbox import Letter

from .checker import MARK, Violation, unmarked
from .disk import Node, SimulatedBox, SimulatedFiles
from .processes import Process

if TYPE_CHECKING:
    from .roles import Machine

GARBAGE = b"rotten"


class VersionedFiles(SimulatedFiles):
    """The files of a process of one version, and a guard over what only the other can read."""

    def __init__(self, machine: Machine, process: Process, *, later: bool) -> None:
        super().__init__(machine.disk, process)
        self._machine = machine
        self._later = later
        self._blind = False  # the orders could not be read when it last looked

    @property
    def _knows(self) -> bool:
        return self._later or self._machine.calm

    def write_new(
        self,
        path: str,
        chunks: Sequence[Buffer],
        *,
        sync: bool = False,
        spares: tuple[str, str] | None = None,
        reserve: bool = False,
    ) -> None:
        data = b"".join(chunks)
        if self._knows and data[:1] == b"{":
            data = MARK + data[1:]
        super().write_new(path, [data], sync=sync, spares=spares)

    def read(self, path: str, limit: int) -> bytes:
        if path == self._machine.base.orders:
            self._blind = False
        data = super().read(path, limit)
        if path == self._machine.base.orders:
            self._blind = data == GARBAGE or (data.startswith(MARK) and not self._knows)
        return unmarked(data) if self._knows else data

    def open_box(self, path: str) -> SimulatedBox | None:
        box = super().open_box(path)
        return None if box is None else _GuardedBox(self, box._node)

    def publish(self, temporary: str, final: str) -> bool:
        pool = self._machine.base.result_pool
        if final.startswith(f"{pool}/"):
            self.check_run(final.removeprefix(f"{pool}/").split("/")[0], "made a result for")
        return super().publish(temporary, final)

    def move(self, source: str, target: str) -> None:
        base = self._machine.base
        if target.startswith(f"{base.rejected}/") and self._is_foreign(source):
            raise Violation(f"{source}, which another version wrote, is put aside")
        if target == base.orders and self._blind and self._is_foreign(target):
            raise Violation("orders that could not be read are replaced")
        super().move(source, target)

    def remove(self, path: str) -> None:
        if path.startswith(f"{self._machine.base.control}/") and self._is_foreign(path):
            raise Violation(f"{path}, which another version wrote, is removed")
        super().remove(path)

    def check_letter(self, letter: Letter) -> None:
        """A Master sends nothing that it cannot read, and nothing while it is blind."""
        if self._blind:
            raise Violation(f"{letter} is sent, and nobody could read the orders")
        self.check_run(letter.run, "served")

    def check_run(self, run: str, did: str) -> None:
        """Nobody touches a run of a version that it does not know."""
        if self._is_foreign(self._machine.base.run_info(run)):
            raise Violation(f"{self.process.name} {did} {run}, which it cannot read")

    def _is_foreign(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            data = self.disk.file(path).data
            # What a power loss has torn is bad for every version.
            whole = data.startswith(MARK) and data.rstrip().endswith(b"}")
            return data == GARBAGE or (whole and not self._knows)
        return False


class _GuardedBox(SimulatedBox):
    def write(self, letter: bytes) -> None:
        files = self._files
        if letter != CALL:
            decoded = Letter.decode(letter)
            assert isinstance(files, VersionedFiles) and decoded is not None
            files.check_letter(decoded)
        super().write(letter)


class Rot:
    """Spoils the orders now and then; somebody puts a copy back, or decides to forget them."""

    name = "rot"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._copy: bytes | None = None

    def __call__(self, process: Process) -> None:
        machine = self._machine
        while True:
            process.sleep(machine.rng.choice((0.1, 0.5, 2.0)))
            folder, name = machine.disk.place(machine.base.orders)
            node = folder.entries.get(name)
            if not isinstance(node, Node):
                continue
            if node.data != GARBAGE and not machine.calm:
                self._copy = node.data
                machine.disk.change((folder, name, _kept(GARBAGE)))
            elif node.data == GARBAGE and (machine.calm or machine.rng.random() < 0.3):
                good = self._copy if machine.rng.random() < 0.5 else None
                machine.disk.change((folder, name, None if good is None else _kept(good)))


def _kept(data: bytes) -> Node:
    """A file whose bytes a power loss does not tear."""
    node = Node(data)
    node.stable = data
    return node
