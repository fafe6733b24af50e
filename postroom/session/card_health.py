"""Decides what is to blame when workers die: the job, the session or the GPU.

| what happened | what follows |
| --- | --- |
| one worker died | nothing: the job is requeued |
| three different jobs in a row died with their workers | the session stops itself |
| ... and they were of different kinds | the GPU is the likelier cause, and is quarantined as well |
| three workers in a row died before they were ready | the session stops itself |
| a job broke its context on the GPU (a device-side assert) | nothing: it is that job's failure |
| the first use of the GPU failed: it is full, or somebody has it alone | the session pauses, \
longer each time, and tries again |
| ... for another reason | the same; the third time in a row the GPU is quarantined, and the \
session stops |
| the GPU itself (ECC), or the driver, reports a problem of the GPU | the GPU is quarantined, the \
session stops |
| the Linux out-of-memory killer ended a worker | never one of the above: the session pauses, \
longer each time, and goes on |

A quarantined GPU gets no more work from anybody until `postroom gpu heal`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import PostroomError
from ..gpus.devices.faults import Fault

if TYPE_CHECKING:
    from ..gpus.cards.inventory import CardWatch

MOST_DEATHS = 3
# How long a session waits for memory, or for its GPU: at first, and at most.
PAUSE_S = 1.0
MOST_PAUSE_S = 60.0

Job = tuple[str, int]  # run and number


class CardHealth:
    """Counts the deaths of one session's workers, and decides what follows."""

    def __init__(
        self,
        gpu: str,
        *,
        ask_driver: Callable[[], str],
        quarantine: Callable[[str, str], None],
    ) -> None:
        self._gpu = gpu
        self._ask_driver = ask_driver
        self._quarantine = quarantine
        self._deaths: dict[Job, str] = {}  # since a job last finished: the job, and its kind
        self._never_ready = 0
        self._out_of_memory = 0  # deaths in a row
        self._unusable = 0  # first uses in a row that failed
        self._broken = 0  # ... for another reason than that somebody else uses the GPU
        self.touch_failed = ""  # the worker's error when it could not use its GPU
        self.fault = Fault.OTHER  # what that says

    def was_ready(self, *, used_card: bool = True) -> None:
        """A worker started well; one that waits for its first task has not used its GPU yet."""
        self._never_ready = 0
        if used_card:
            self._unusable = self._broken = 0

    def first_use_failed(self) -> tuple[str | None, float]:
        """A new worker could not use the GPU: return why the session must stop, or how long to
        pause."""
        problem = self._problem()
        self._unusable += 1
        if self.fault not in (Fault.MEMORY, Fault.BUSY):
            self._broken += 1
        if not problem and self._broken >= MOST_DEATHS:
            problem = f"{MOST_DEATHS} new processes in a row could not use it: {self.touch_failed}"
        if problem:
            self._quarantine(self._gpu, problem)
            return f"its GPU has a problem and is quarantined: {problem}", 0.0
        return None, _pause_s(self._unusable)

    def out_of_memory(self, *, finished_any: bool) -> float:
        """The out-of-memory killer ended a worker; return for how many seconds to pause.

        That is no fault of the GPU, and ends by itself when others need less: nothing is counted
        against either, and the driver is not asked.
        """
        self._out_of_memory = 1 if finished_any else self._out_of_memory + 1
        return _pause_s(self._out_of_memory)

    def worker_died(
        self, *, ready: bool, finished_any: bool, lost: Job | None, kind: str
    ) -> str | None:
        """Count a death; return why the session must stop, if it must."""
        self._out_of_memory = 0
        problem = self._problem()
        if problem:
            self._quarantine(self._gpu, problem)
            return f"its GPU has a problem and is quarantined: {problem}"
        if not ready:
            self._never_ready += 1
            if self._never_ready >= MOST_DEATHS:
                return f"{MOST_DEATHS} workers in a row died before they were ready"
            return None
        if finished_any:
            self._deaths.clear()
        if lost is not None:
            self._deaths[lost] = kind
        if len(self._deaths) < MOST_DEATHS:
            return None
        why = f"its workers died with {MOST_DEATHS} different jobs in a row, so it takes no more"
        if len(set(self._deaths.values())) > 1 and self._gpu != "cpu":
            self._quarantine(self._gpu, f"jobs of different kinds died on it: {self._kinds()}")
            why += "; the jobs were of different kinds, so the card is quarantined"
        return why

    def _problem(self) -> str:
        if self._gpu == "cpu":
            return ""
        if self.touch_failed and self.fault is Fault.CARD:
            return self.touch_failed
        return self._ask_driver()

    def _kinds(self) -> str:
        return ", ".join(sorted(set(self._deaths.values())))


class DriverWatch:
    """Asks the driver about the GPUs of one session, through a child process that lives as long.

    It must listen from the session's start: the driver tells of an Xid once, to those who listen.
    """

    def __init__(self, gpu: str) -> None:
        """`gpu`: the uuids of the session's GPUs, or "cpu", of which nobody is asked."""
        self._uuids = [] if gpu == "cpu" else gpu.split(",")
        self._watch: CardWatch | None = None
        if self._uuids:
            from ..gpus.cards.inventory import CardWatch

            with contextlib.suppress(PostroomError, OSError):
                self._watch = CardWatch()

    def problem(self) -> str:
        """What the driver reports of any of the GPUs; "" also when it cannot be asked."""
        if self._watch is None:
            return ""
        with contextlib.suppress(PostroomError, OSError):
            for card in self._watch.cards():
                if card.uuid in self._uuids and card.problem:
                    return card.problem
        return ""

    def close(self) -> None:
        """End the child process."""
        if self._watch is not None:
            self._watch.close()


def quarantine(gpu: str, reason: str) -> None:
    """Mark GPUs in the ledger, so that nobody gets them. Errors are ignored: the session stops."""
    from ..gpus.ledger.protocol import open_ledger

    with contextlib.suppress(PostroomError, OSError):
        for uuid in gpu.split(","):
            open_ledger().quarantine(uuid, reason)


def _pause_s(times: int) -> float:
    return min(MOST_PAUSE_S, PAUSE_S * 2.0 ** min(times - 1, 10))
