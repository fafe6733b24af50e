"""One GPU session in the foreground: pins a GPU, watches its mailbox, runs the jobs in it.

python gpu_session.py 0 ./base         Ctrl-C: stop after the running job; twice: stop now
python gpu_session.py cpu ./base
"""

import sys

from postroom.session.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
