"""`python -m postroom.session.import_check PROJECT TASK`: can a worker import this task?"""

from __future__ import annotations

import sys

from ..errors import KernelError
from .tasks import check_import


def main() -> int:
    """Import the task; say on stderr why that fails."""
    _, project, task = sys.argv
    del sys.path[0]
    try:
        check_import(project, task)
    except KernelError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
