"""Style sheets and scripts. All of them are files of the package."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

FOLDER = f"{os.path.dirname(os.path.abspath(__file__))}/static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Asset:
    """One file in memory."""

    data: bytes
    kind: str
    digest: str


def read_assets(folder: str = FOLDER) -> dict[str, Asset]:
    """All files by name: a path that a client sends is never opened."""
    found = {}
    for name in sorted(os.listdir(folder)):
        kind = TYPES.get(os.path.splitext(name)[1])
        if kind is not None:
            with open(f"{folder}/{name}", "rb") as file:
                data = file.read()
            found[name] = Asset(data, kind, hashlib.sha256(data).hexdigest()[:12])
    return found
