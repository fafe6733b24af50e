"""Tells errors that mean "it does not exist" from errors that mean "we could not look".

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
