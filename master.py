"""The scheduler of a base: sends submitted jobs to its agents, until Ctrl-C.

python master.py ./base
"""

from postroom import Master

__all__ = ["Master"]

if __name__ == "__main__":
    import os

    from postroom.__main__ import run_command
    from postroom.cli.master import command

    os.environ.setdefault("POSTROOM_BASE", "./base")  # as main.py does
    run_command(command)
