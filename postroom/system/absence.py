"""What an OSError means: "it does not exist", "wait", or "this process cannot go on".

When descriptors run out (EMFILE), every `open` fails, also of files that are there. Code that
reads this as "absent" would grant a GPU that is held, or take a living process for dead.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

# EACCES and EPERM: it belongs to somebody else, and is not ours to judge by. ENXIO: a socket;
# ENODEV: a control group that was removed.
_ABSENT = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESRCH,
        errno.ELOOP,
        errno.EACCES,
        errno.EPERM,
        errno.ENXIO,
        errno.ENODEV,
    }
)


# The disk is full or read-only, or a network disk does not answer: none of that is the fault of the
# process that sees it, and all of it may end.
_PASSES = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EINTR,
        errno.EAGAIN,
        errno.ENFILE,
    }
)


def may_pass(error: OSError) -> bool:
    """Say whether waiting may help.

    It does not help a process whose own descriptors were closed (EBADF), or which lowered its own
    limits (EMFILE, EFBIG): that would wait for ever.
    """
    return error.errno in _PASSES


def means_absent(error: OSError) -> bool:
    """Say whether an error means that there is nothing to read, for us."""
    return error.errno in _ABSENT


@contextmanager
def absent_is_fine() -> Iterator[None]:
    """Pass over what is not there; every other error is raised."""
    try:
        yield
    except OSError as error:
        if not means_absent(error):
            raise
