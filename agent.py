"""Start, stop and list the agents of a base.

python agent.py start 4 ./base         one agent on each of four GPUs, detached
python agent.py list ./base            GPU, state, job in hand, jobs done
python agent.py stop ./base            all of them, after the jobs in hand
python agent.py stop ./base 2 --now    agent 2, at once; its job is given on
"""

from postroom import Agent

__all__ = ["Agent"]

if __name__ == "__main__":
    from postroom.__main__ import run_command
    from postroom.cli.agents import command

    run_command(command)
