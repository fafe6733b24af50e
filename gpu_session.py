"""One GPU session in the foreground: pins a GPU, watches its mailbox, runs what comes.

python gpu_session.py 0 ./base         Ctrl-C: after the job in hand; twice: at once
python gpu_session.py cpu ./base
"""

import sys

from postroom.session.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
