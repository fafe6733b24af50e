"""What the page may ask for: the requests of the command line, and nothing else."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..gpus.cards.gpu_list import parse_gpus
from ..queue import actions
from ..queue.actions import Answer, Scope
from ..queue.queue_view import QueueView
from ..queue.submission import submit
from ..store.job_ids import JobId
from .context import PageContext


class JobVerb(enum.Enum):
    """What can be asked for jobs."""

    KILL = "kill"
    HOLD = "hold"
    RELEASE = "release"
    RERUN = "rerun"
    PRIORITY = "priority"
    FIRST = "first"
    LAST = "last"


class QueueVerb(enum.Enum):
    """What can be asked for the queue, a project or a run."""

    PAUSE = "pause"
    RESUME = "resume"


class AgentVerb(enum.Enum):
    """What can be asked for agents."""

    DRAIN = "drain"
    FILL = "fill"
    REMOVE = "remove"


@dataclass(frozen=True)
class PageAction:
    """What came of asking."""

    text: str  # for people
    done: bool  # False: a Master has yet to do it
    jobs: Sequence[JobId] = ()  # that were queued


def scope_of(project: str, run: str) -> Scope:
    """What a pause is about: a project, a run, or everything."""
    if project and run:
        raise PostroomError("name a project or a run, not both")
    return Scope(projects=(project,) if project else (), runs=(run,) if run else ())


async def ask_jobs(
    context: PageContext, verb: JobVerb, jobs: Sequence[JobId], value: int | None = None
) -> PageAction:
    """Ask for something to be done with jobs."""
    if verb is JobVerb.PRIORITY and value is None:
        raise PostroomError("a priority is a whole number")

    def act(view: QueueView) -> Answer:
        if verb is JobVerb.PRIORITY:
            assert value is not None
            return actions.set_priority(view, jobs, value)
        if verb in (JobVerb.FIRST, JobVerb.LAST):
            return actions.move(view, jobs, verb.value)
        plain: dict[JobVerb, Callable[[QueueView, Sequence[JobId]], Answer]] = {
            JobVerb.KILL: actions.kill,
            JobVerb.HOLD: actions.hold,
            JobVerb.RELEASE: actions.release,
            JobVerb.RERUN: actions.rerun,
        }
        return plain[verb](view, jobs)

    return await _do(context, act)


async def ask_queue(
    context: PageContext, verb: QueueVerb, scope: Scope, *, preempt: bool = False
) -> PageAction:
    """Pause or resume a part of the queue, or all of it."""
    if verb is QueueVerb.PAUSE:
        return await _do(context, lambda view: actions.pause(view, scope, preempt))
    return await _do(context, lambda view: actions.resume(view, scope))


async def ask_agents(
    context: PageContext, verb: AgentVerb, agents: Sequence[str], *, preempt: bool = False
) -> PageAction:
    """Have agents take no more jobs, take them again, or go."""
    if verb is AgentVerb.REMOVE:
        return await _do(context, lambda view: actions.remove_agents(view, agents, preempt))
    if verb is AgentVerb.DRAIN:
        return await _do(context, lambda view: actions.drain(view, agents, preempt))
    return await _do(context, lambda view: actions.fill(view, agents))


async def add_agents(context: PageContext, gpus: str) -> PageAction:
    """Have the acting Master start sessions."""
    known = [str(card.index) for card in (await context.reader.overview()).cards]
    parse_gpus(gpus, lambda: known)  # what makes no sense is said here, and not in a log
    return await _do(context, lambda view: actions.add_agents(view, gpus))


async def queue_up(context: PageContext, specs: Sequence[CommandSpec], project: str) -> list[JobId]:
    """Queue jobs; they are on disk by then."""
    found = await context.reader.look(
        lambda _: submit(context.reader.files, context.base, specs, project=project)
    )
    context.reader.forget()
    return found


async def _do(context: PageContext, act: Callable[[QueueView], Answer]) -> PageAction:
    answer = await context.reader.look(act)
    done = await context.reader.settle(answer)
    context.reader.forget()
    return PageAction(answer.text, done=done, jobs=answer.jobs)
