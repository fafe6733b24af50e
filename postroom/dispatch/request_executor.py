"""Carries out requests for the acting Master, and keeps the orders that are in force.

Only a Dispatcher has one, so only the acting Master changes orders. It may be killed at any point:
a request is removed last, and carrying it out again changes nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..errors import BadFileError, OtherVersionError
from ..parcel.sheets import Outcome, OutcomeSheet
from ..store.base import Base
from ..store.edited_jobs import write_edited
from ..store.files import Files
from ..store.job_ids import JobId
from ..store.journal import Journal
from ..store.mailbox import Letter
from ..store.requests import (
    Orders,
    Request,
    RequestVerb,
    StopOrder,
    list_stops,
    order_stop,
    pending,
    read_request,
    write_orders,
)
from .agent import Agent
from .agent_starter import ABOUT_AGENTS, AgentStarter
from .collector import Collector
from .project_queue import ProjectQueue
from .registry import ActiveRun, Registry
from .send_order import is_held, run_priority

# This many jobs of a project that fail within this time, with the same words, pause it.
ALIKE = 5
AT_ONCE_S = 30.0
# Stands for all projects, where projects are named.
WHOLE_QUEUE = ""


class RequestExecutor:
    """Carries out what the acting Master is asked to do."""

    def __init__(
        self,
        files: Files,
        base: Base,
        registry: Registry,
        collector: Collector,
        journal: Journal,
        *,
        orders: Orders,
        agents: Mapping[str, Agent],
        agent_starter: AgentStarter | None = None,
    ) -> None:
        self._files = files
        self._base = base
        self._registry = registry
        self._collector = collector
        self._journal = journal
        self._agents = agents
        self._starter = agent_starter
        self._dirty = False
        self._cancelling = False
        self._alike: dict[str, tuple[str, int]] = {}  # of each project: its last failure, how often
        self._in_a_row: dict[str, int] = {}  # failures since the last success, as `failure_limits`
        self.orders = orders
        files.make_folder(base.control)
        self._stops = set(list_stops(files, base))
        collector.listen(self._jobs_ended)
        collector.on_taken = self._end

    # Requests

    def carry_out_requests(self) -> bool:
        """Carry out new requests, and apply the orders to new runs; True: there were requests.

        To a Master that has just started all runs are new: the one before it may have been killed
        before it had applied its orders.
        """
        for run in self._registry.take_new():
            self._apply_to_new_run(run)
        for run in self._registry.take_gone():
            self._dirty |= self.orders.forget_run(run)
        for job in [job for job in self._stops if self._holder(job) is None]:
            self._drop_stop(job)
        done = [self._carry_out(name) for name in pending(self._files, self._base)]
        self._cancel_dependents()
        if self._dirty:
            self._save()
        return any(done)

    def _carry_out(self, name: str) -> bool:
        """Carry out one request; False: it is left for a Master that can."""
        try:
            request = read_request(self._files, self._base, name)
        except FileNotFoundError:
            return False
        except OtherVersionError as error:
            self._registry.leave_file(error)
            return False
        except BadFileError as error:
            self._registry.reject(error)
            return True
        # A program that acts for a while starts no sessions for others.
        if request.verb in ABOUT_AGENTS and not (
            self._starter and self._starter.carry_out(request)
        ):
            return False
        self._change_orders(request)
        self._save()
        self._act(request)
        self._journal.event(
            "asked",
            verb=request.verb.value,
            by=request.by,
            jobs=[str(job) for job in request.jobs[:20]],
            runs=list(request.runs),
            projects=list(request.projects),
            agents=list(request.agents),
            value=None if request.verb is RequestVerb.EDIT else request.value,
        )
        self._files.remove(f"{self._base.control}/{name}")
        return True

    def _save(self) -> None:
        write_orders(self._files, self._base, self.orders)
        self._dirty = False

    def _change_orders(self, request: Request) -> None:
        orders, jobs = self.orders, self._not_done(request.jobs)
        match request.verb:
            case RequestVerb.KILL:
                orders.killed.update(dict.fromkeys(jobs, _by(request)))
            case RequestVerb.HOLD | RequestVerb.RELEASE:
                orders.held.update(dict.fromkeys(jobs, request.verb is RequestVerb.HOLD))
            case RequestVerb.PRIORITY:
                assert isinstance(request.value, int)
                orders.priorities.update(dict.fromkeys(jobs, request.value))
                for run in request.runs:
                    orders.run_priorities[run] = request.value
                    for job in [job for job in orders.priorities if job.run == run]:
                        del orders.priorities[job]
            case RequestVerb.EDIT:
                pass  # see `_edit`
            case RequestVerb.MOVE:
                self._move(jobs, str(request.value))
            case RequestVerb.PAUSE:
                orders.paused_all |= request.everything
                orders.paused_projects.update(request.projects)
                orders.paused_runs.update(request.runs)
            case RequestVerb.LIMIT:
                assert isinstance(request.value, int)
                _set_limits(orders.limits, request.projects, request.value)
            case RequestVerb.FAILURES:
                assert isinstance(request.value, int)
                named = request.projects or (WHOLE_QUEUE,)
                _set_limits(orders.failure_limits, named, request.value)
                for name in named:
                    self._in_a_row.pop(name, None)
            case RequestVerb.RESUME:
                known = (*orders.paused_why, *self._alike, *self._in_a_row)
                for project in known if request.everything else request.projects:
                    orders.paused_why.pop(project, None)
                    self._alike.pop(project, None)
                    self._in_a_row.pop(project, None)
                if request.everything:
                    orders.paused_all = False
                    orders.paused_projects.clear()
                    orders.paused_runs.clear()
                orders.paused_projects.difference_update(request.projects)
                orders.paused_runs.difference_update(request.runs)
            case RequestVerb.DRAIN:
                orders.drained.update(self._named_agents(request))
            case RequestVerb.FILL | RequestVerb.REMOVE:
                orders.drained.difference_update(self._named_agents(request))
            case RequestVerb.ADD | RequestVerb.UP | RequestVerb.DOWN:
                pass

    def _act(self, request: Request) -> None:
        match request.verb:
            case RequestVerb.KILL:
                self._kill(request.jobs)
            case RequestVerb.EDIT:
                for job, parcel in request.parcels().items():
                    self._edit(job, parcel)
            case RequestVerb.HOLD | RequestVerb.RELEASE | RequestVerb.PRIORITY | RequestVerb.MOVE:
                for run in {job.run for job in request.jobs}:
                    self._apply(run, [job.number for job in request.jobs if job.run == run])
                for run in request.runs:
                    self._apply(run, None)
            case RequestVerb.PAUSE | RequestVerb.DRAIN | RequestVerb.DOWN if request.preempt:
                self._preempt(request)
            case RequestVerb.REMOVE if self._starter is not None:
                if request.preempt:
                    self._preempt(request)
                self._starter.stop_others(self._named_agents(request), now=request.preempt)

    def _not_done(self, jobs: Iterable[JobId]) -> list[JobId]:
        """Those that have not ended; orders about the others are forgotten.

        A job may have ended unseen, when its session was taken for dead. If it were held for ever,
        nobody would find its result.
        """
        endings = self._registry.endings(jobs)
        for job, ended_well in endings.items():
            self._dirty |= ended_well is not None and self.orders.forget(job)
        return [job for job, ended_well in endings.items() if ended_well is None]

    def _named_agents(self, request: Request) -> list[str]:
        if request.everything:
            return sorted(self.orders.drained.union(self._agents))
        return list(request.agents)

    def _letters(self) -> list[tuple[str, Letter, int]]:
        """Every working agent, with its letter and the first job whose result has not been seen."""
        return [(a.agent_id, a.letter, a.reached) for a in self._agents.values() if a.letter]

    def _kill(self, jobs: Iterable[JobId]) -> None:
        """Cancel killed jobs that wait, and order those that run to be stopped."""
        waiting: dict[tuple[str, str], list[int]] = {}
        for job in jobs:
            by = self.orders.killed.get(job)
            if by is None:
                continue  # it has ended
            holder = self._holder(job)
            if holder is None:
                waiting.setdefault((job.run, by), []).append(job.number)
            else:
                stop = StopOrder(holder.attempt, final=True, reason=f"killed by {by}")
                self._order_stop(job, stop)
        for (run, by), numbers in waiting.items():
            self._registry.bring_in(run)
            self._collector.cancel(run, numbers, f"killed by {by}")

    def _edit(self, job: JobId, parcel: bytes) -> None:
        """Change a job that is with no agent; one that has begun stays as it is."""
        active = self._registry.runs.get(job.run)
        queue = active.queue if active is not None else None
        if active is None or not isinstance(queue, ProjectQueue) or not queue.is_here(job.number):
            return
        write_edited(self._files, self._base, job.run, job.number, parcel)
        self._registry.apply_edit(active, job.number)
        # What was edited last counts, whatever was ordered before.
        wanted = queue.scheduling_of(job.number).priority
        if queue.priority_of(job.number) != wanted:
            self.orders.priorities[job] = wanted
            self._dirty = True
            queue.reconsider(job.number)

    def _preempt(self, request: Request) -> None:
        for agent, letter, reached in self._letters():
            active = self._registry.runs.get(letter.run)
            project = active.project if active is not None else ""
            named = (
                request.everything
                or agent in request.agents
                or letter.run in request.runs
                or (bool(project) and project in request.projects)
            )
            if named:
                for number in range(reached, letter.stop):
                    stop = StopOrder(
                        letter.attempt, final=False, reason=f"stopped by {_by(request)}"
                    )
                    self._order_stop(JobId(letter.run, number), stop)

    def _order_stop(self, job: JobId, stop: StopOrder) -> None:
        self._stops.add(job)
        order_stop(self._files, self._base, job, stop)

    def _move(self, jobs: list[JobId], where: str) -> None:
        for at, job in enumerate(jobs if where != "first" else reversed(jobs)):
            active = self._registry.runs.get(job.run)
            if active is None or not isinstance(active.queue, ProjectQueue):
                continue
            if where in ("first", "last"):
                first, last = active.queue.first_and_last_position()
                position = first - 1 if where == "first" else last + 1
            else:
                position = (
                    active.queue.position_of(JobId.parse(where).number) - 0.5 + at / (4 + len(jobs))
                )
            self.orders.positions[job] = position

    def _apply(self, run: str, jobs: list[int] | None) -> None:
        """Apply the orders to the queue of a run: to these jobs, or (None) to all."""
        active = self._registry.runs.get(run)
        if active is None:
            return
        queue = active.queue
        if isinstance(queue, ProjectQueue):
            if jobs is None:
                queue.reconsider_all()
            else:
                for job in jobs:
                    queue.reconsider(job)
            return
        queue.priority = run_priority(self.orders, run)
        if jobs is None:
            jobs = [job.number for job in self.orders.held if job.run == run]
        held = {job for job in jobs if is_held(self.orders, JobId(run, job))}
        queue.hold(held)
        queue.release(set(jobs) - held)

    # Events

    def _apply_to_new_run(self, run: str) -> None:
        """A run is served from now on: apply the orders that are about it."""
        self._apply(run, None)
        self._kill([job for job in self.orders.killed if job.run == run])

    def _cancel_dependents(self) -> None:
        """Cancel jobs that wait for one that did not succeed, and those that wait for them."""
        if self._cancelling:
            return  # the loop below, which is running, finds them
        self._cancelling = True
        try:
            while found := self._take_unreachable():
                for (run, other), numbers in found.items():
                    there = self._files.exists(self._base.run_folder(other.run))
                    why = "did not succeed" if there else "was removed: how it ended is not known"
                    reason = f"job {other.short}, which it waits for, {why}"
                    self._collector.cancel(run, numbers, reason)
        finally:
            self._cancelling = False

    def _take_unreachable(self) -> dict[tuple[str, JobId], list[int]]:
        found: dict[tuple[str, JobId], list[int]] = {}
        for run, active in self._registry.runs.items():
            if isinstance(active.queue, ProjectQueue):
                for number, other in active.queue.unreachable:
                    found.setdefault((run, other), []).append(number)
                active.queue.unreachable.clear()
        return found

    def _jobs_ended(self, run: str, sheet: OutcomeSheet) -> None:
        active = self._registry.runs.get(run)
        if active is not None and isinstance(active.queue, ProjectQueue):
            self._watch_failures(active, active.queue, sheet)
        self._end(run, sheet.first, sheet.first + sheet.count, sheet.failures)

    def _watch_failures(self, active: ActiveRun, queue: ProjectQueue, sheet: OutcomeSheet) -> None:
        """Keep a mistake that all jobs share from burning the queue.

        The waiting jobs of a group are held after as many failures as it was submitted with. A
        project whose jobs fail one after the other, at once and alike, is paused.
        """
        project = active.project
        for number in range(sheet.first, sheet.first + sheet.count):
            failure = sheet.failures.get(number)
            if failure is None:
                self._alike.pop(project, None)
                self._in_a_row.pop(project, None)
                self._in_a_row.pop(WHOLE_QUEUE, None)
                continue
            if failure.outcome is Outcome.CANCELLED:
                continue
            said = failure.text
            self._count_failure(project, said)
            if held := queue.failed(number):
                self.orders.held.update({JobId(active.info.run, job): True for job in held})
                self._dirty = True
                self._apply(active.info.run, held)
                self._journal.log(
                    "warning", f"{len(held)} jobs of {project} are held: too many of them failed"
                )
            before, count = self._alike.get(project, ("", 0))
            count = count + 1 if said == before else 1
            if sheet.seconds[number - sheet.first] > AT_ONCE_S:
                count = 0
            self._alike[project] = said, count
            if count >= ALIKE and queue.waiting():
                self._pause(project, f"{count} jobs in a row failed at once with {said[:300]!r}")

    def _count_failure(self, project: str, said: str) -> None:
        """Pause a project, or the queue, after as many failures in a row as somebody has set."""
        for name in (project, WHOLE_QUEUE):
            most = self.orders.failure_limits.get(name)
            if most is not None:
                count = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
                if count >= most:
                    self._pause(name, f"{count} jobs in a row failed, the last with {said[:300]!r}")

    def _pause(self, project: str, why: str) -> None:
        """Begin no more jobs of a project, or of the queue, and say why."""
        orders = self.orders
        if orders.paused_all if project == WHOLE_QUEUE else project in orders.paused_projects:
            return
        if project == WHOLE_QUEUE:
            orders.paused_all = True
        else:
            orders.paused_projects.add(project)
        orders.paused_why[project] = why
        self._save()
        what = f"project {project}" if project else "the queue"
        self._journal.log("warning", f"{what} is paused: {why}")

    def _end(self, run: str, first: int, stop: int, failures: Collection[int] = ()) -> None:
        """Jobs have ended: forget the orders about them, and let go on what waits for them."""
        active = self._registry.runs.get(run)
        queue = active.queue if active is not None else None
        awaited = self._registry.awaited(run)
        orders = self.orders
        if not (awaited or orders.held or orders.killed or isinstance(queue, ProjectQueue)):
            return
        for number in range(first, stop):
            job = JobId(run, number)
            self._drop_stop(job)
            self._dirty |= orders.forget(job)
            if isinstance(queue, ProjectQueue):
                queue.forget(number)
            if number in awaited:
                ended_well = number not in failures
                for other in list(self._registry.runs.values()):
                    if isinstance(other.queue, ProjectQueue):
                        other.queue.dependency_ended(job, ended_well)
        if awaited:
            self._cancel_dependents()

    def jobs_returned(self, letter: Letter, reached: int) -> None:
        """Jobs have come back with no result: those that are to be killed are cancelled."""
        for number in range(reached, letter.stop):
            job = JobId(letter.run, number)
            self._drop_stop(job)
            if job in self.orders.killed:
                self._kill([job])

    def _drop_stop(self, job: JobId) -> None:
        if job in self._stops:
            self._stops.discard(job)
            self._files.remove(self._base.stop_order(job.run, job.number))

    def _holder(self, job: JobId) -> Letter | None:
        """The letter that names a job; None: it is with no agent."""
        for _, letter, reached in self._letters():
            if letter.run == job.run and reached <= job.number < letter.stop:
                return letter
        return None


def _set_limits(limits: dict[str, int], projects: Iterable[str], most: int) -> None:
    """Set a limit for some projects; 0 removes it."""
    for project in projects:
        limits.pop(project, None)
        if most:
            limits[project] = most


def _by(request: Request) -> str:
    return request.by or "somebody"
