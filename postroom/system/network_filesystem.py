"""Whether a folder is on a filesystem that other hosts may have mounted, too."""

from __future__ import annotations

import os

_TYPES = frozenset(
    [
        "nfs",
        "nfs3",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "afs",
        "ocfs2",
        "gfs2",
        "orangefs",
        "pvfs2",
        "panfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.juicefs",
        "fuse.s3fs",
        "fuse.beegfs",
        "wekafs",
    ]
)


def network_filesystem(path: str) -> str:
    """The type of the filesystem that a folder is on, if it is one of a network; else ""."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        words = line.split(" ")
        if words[2] == number and "-" in words:
            kind = words[words.index("-") + 1]
            return kind if kind in _TYPES else ""
    return ""
