"""Start, stop and list the agents of a base.

python agent.py start 4 ./base         one agent on each of four GPUs, detached
python agent.py list ./base            GPU, state, running job, jobs done
python agent.py stop ./base            stop all, after their running jobs
python agent.py stop ./base 2 --now    stop agent 2 now; its running job is requeued
"""

from postroom.dispatch.agent import Agent

__all__ = ["Agent"]

if __name__ == "__main__":
    import os

    from postroom.__main__ import run_command
    from postroom.cli.agents import command

    os.environ.setdefault("POSTROOM_BASE", "./base")  # as main.py does
    run_command(command)
