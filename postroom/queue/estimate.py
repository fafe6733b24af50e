"""Why a job waits, and when it should start."""

from __future__ import annotations

from .scene import Scene
from .shelf import Shelf


class Oracle:
    """Answers for one look at a base."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def why(self, shelf: Shelf, number: int, state: str) -> str:
        """Why a job waits, in one sentence."""
        return ""

    def when(self, shelf: Shelf, number: int, state: str) -> tuple[int | None, float | None]:
        """Its place in the queue, and when it should start; None where that is not known."""
        return None, None
