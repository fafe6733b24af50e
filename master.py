"""The scheduler of a base: sends submitted jobs to its agents, until Ctrl-C.

python master.py ./base
"""

from postroom import Master

__all__ = ["Master"]

if __name__ == "__main__":
    from postroom.__main__ import run_command
    from postroom.cli.master import command

    run_command(command)
