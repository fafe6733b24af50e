"""A user who sends requests all the time: hold, release, kill, pause, resume."""

from __future__ import annotations

import contextlib

from postroom.errors import PostroomError
from postroom.store.job_ids import JobId
from postroom.store.requests import Request, RequestVerb, ask

from .checker import Submission
from .processes import Process
from .roles import Machine


class User:
    """Asks things of the acting Master, and in the end lets everything go on."""

    name = "user"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __call__(self, process: Process) -> None:
        machine = self._machine
        files = machine.files(process)
        while True:
            process.sleep(machine.rng.choice((0.05, 0.3, 1.0)))
            accepted = [s for s in machine.checker.submissions if s.run is not None and s.jobs]
            requests = self._let_go(accepted) if machine.calm else self._meddle(accepted)
            for request in requests:
                with contextlib.suppress(OSError, PostroomError):
                    ask(files, machine.base, request)

    def _meddle(self, accepted: list[Submission]) -> list[Request]:
        rng = self._machine.rng
        if not accepted:
            return []
        submission = rng.choice(accepted)
        assert submission.run is not None
        job = JobId(submission.run, rng.choice(sorted(submission.jobs)))
        verb = rng.choice(
            (
                RequestVerb.KILL,
                RequestVerb.HOLD,
                RequestVerb.RELEASE,
                RequestVerb.PRIORITY,
                RequestVerb.PAUSE,
                RequestVerb.DRAIN,
                *((RequestVerb.ADD,) if self._machine.keeper else ()),
            )
        )
        if verb is RequestVerb.KILL:
            self._machine.checker.killed(submission, job.number)
        if verb is RequestVerb.PRIORITY:
            return [Request(verb, runs=(job.run,), value=rng.choice((-1, 0, 1)))]
        if verb is RequestVerb.PAUSE:
            chosen = rng.choice((RequestVerb.PAUSE, RequestVerb.RESUME))
            everything = rng.random() < 0.3
            return [Request(chosen, runs=() if everything else (job.run,), everything=everything)]
        if verb is RequestVerb.ADD:
            agent, everything = rng.choice("0123"), rng.random() < 0.3
            down = Request(rng.choice((RequestVerb.UP, RequestVerb.DOWN)), everything=True)
            return [down if everything else Request(RequestVerb.REMOVE, agents=(agent,))]
        if verb is RequestVerb.DRAIN:
            return [
                Request(
                    rng.choice((RequestVerb.DRAIN, RequestVerb.FILL)), agents=(rng.choice("0123"),)
                )
            ]
        return [Request(verb, jobs=(job,))]

    def _let_go(self, accepted: list[Submission]) -> list[Request]:
        jobs = [JobId(s.run, job) for s in accepted if s.run is not None for job in s.jobs]
        asked = [Request(verb, everything=True) for verb in (RequestVerb.RESUME, RequestVerb.FILL)]
        if self._machine.keeper:
            asked.append(Request(RequestVerb.UP, everything=True))
            asked.append(Request(RequestVerb.ADD, value=",".join(self._machine.kept)))
        return [*asked, *([Request(RequestVerb.RELEASE, jobs=tuple(jobs))] if jobs else [])]
