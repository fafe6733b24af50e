"""A standing Master: gives the agents of a base whatever is handed in, until Ctrl-C.

python master.py ./base
"""

from postroom import Master

__all__ = ["Master"]

if __name__ == "__main__":
    from postroom.__main__ import run_command
    from postroom.cli.master import command

    run_command(command)
