"""Which filesystem a folder is on, and whether other hosts may have mounted it, too."""

from __future__ import annotations

import os

NETWORK = frozenset([
    "nfs", "nfs3", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs",
    "ocfs2", "gfs2", "orangefs", "pvfs2", "panfs", "wekafs", "fuse.sshfs", "fuse.glusterfs",
    "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "fuse.beegfs",
])  # fmt: skip


def filesystem_of(path: str) -> str:
    """The type of the filesystem that holds a path; "" if nobody can say."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    path = os.path.realpath(path)
    best, kind = "", ""
    for words in lines:
        found = words[words.index("-") + 1]
        if words[2] == number:
            return found
        # A subvolume of btrfs has a number of its own: then the nearest mount above tells.
        mount = words[4].encode().decode("unicode_escape")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def network_filesystem(path: str) -> str:
    """The type of the filesystem that holds a path, if other hosts may mount it; else ""."""
    kind = filesystem_of(path)
    return kind if kind in NETWORK else ""
