"""Another user, who takes every GPU that is free, and gives it back after a while."""

from __future__ import annotations

from .disk import SimulatedLock
from .processes import Process
from .roles import Machine


class Neighbour:
    """Uses the GPUs that the sessions of this base give back."""

    name = "neighbour"

    def __init__(self, machine: Machine, agents: list[str]) -> None:
        self._machine = machine
        self._agents = agents

    def __call__(self, process: Process) -> None:
        machine = self._machine
        held: list[SimulatedLock] = []
        while True:
            process.sleep(machine.rng.choice((0.05, 0.3, 1.0)))
            for lease in held:
                lease.close(process)
            taken = [machine.try_card(agent, process) for agent in self._agents]
            held = [lease for lease in taken if lease is not None]
            if machine.calm or machine.rng.random() < 0.5:
                for lease in held:
                    lease.close(process)
                held = []
