"""Optuna: `optimize(study, objective, n_trials=100)` runs each trial on a GPU of its own.

The study, its sampler, its pruner and its storage stay in this process, whatever they are: the loop
is Optuna's own, with a thread for each trial that runs. Only the objective is called in an agent.
What it asks of its trial comes back through a socket, and is answered by the trial's thread:

    study.optimize ── thread: trial ◄── suggest, report, should_prune ──► objective, in an agent

The socket is in a folder that only this user can open. If this program dies, the objective's next
question fails, and its agent is free again. If an agent dies and the call is made again, the trial
answers as before: Optuna keeps what was suggested.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import Future
from multiprocessing.connection import Client, Connection
from typing import Any

import optuna
from optuna.trial import BaseTrial, Trial

from ..errors import PostroomError
from ..functions.executor import Executor

LONGEST_PATH = 80  # of a folder for sockets, whose whole path has at most 107 bytes


def optimize(
    study: optuna.Study,
    objective: Callable[[Any], Any],
    n_trials: int | None = None,
    n_jobs: int | None = None,
    *,
    executor: AnyExecutor | None = None,
    **options: Any,
) -> None:
    """Optimise as `study.optimize` does, with each trial in an agent that has a GPU of its own.

    `n_jobs`: trials at a time; by default, and with -1, one on each GPU.
    `executor`: a `postroom.Executor` to use; by default a new one, which ends with this call.
    Other options are those of `study.optimize`: `timeout`, `catch`, `callbacks`, ...
    """
    with contextlib.ExitStack() as stack:
        if executor is None:
            agents = None if n_jobs == -1 else n_jobs
            executor = stack.enter_context(Executor(agents=agents))
        if n_jobs in (None, -1):
            n_jobs = getattr(executor, "n_agents", 1)
        study.optimize(OnAgent(objective, executor), n_trials, n_jobs=n_jobs, **options)


class OnAgent:
    """An objective that runs in an agent, while this thread answers for its trial."""

    def __init__(self, objective: Callable[[Any], Any], executor: AnyExecutor) -> None:
        self._objective = objective
        self._executor = executor

    def __call__(self, trial: Trial) -> Any:
        """Run one trial."""
        with _TrialServer(trial) as server:
            future = self._executor.submit(call_objective, self._objective, server.address)
            try:
                server.serve_until_done(future)
                return future.result()
            except BaseException:
                getattr(future, "kill", future.cancel)()
                raise


class _TrialServer:
    """Answers questions about one trial, in the thread that waits for its objective."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._connection: Connection[Any, Any] | None = None

    def __enter__(self) -> _TrialServer:
        above = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(
            prefix="postroom-", dir=above if len(above) < LONGEST_PATH else "/tmp"
        )
        self.address = os.path.join(self._folder, "trial")
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.address)
        self._door.listen(1)
        self._done, self._tell = os.pipe()
        self._told_later = False
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        self._door.close()
        os.close(self._done)
        if not self._told_later:
            os.close(self._tell)
        shutil.rmtree(self._folder)

    def serve_until_done(self, future: Future[Any]) -> None:
        """Answer until the call has ended; one that is made again connects again."""
        tell, self._told_later = self._tell, True
        future.add_done_callback(lambda _: os.close(tell))  # then the pipe's other end is ready
        while True:
            waiting: list[Any] = [self._done, self._door]
            if self._connection is not None:
                waiting.append(self._connection)
            ready = select.select(waiting, [], [])[0]
            if self._connection in ready:
                self._answer()
            elif self._door in ready:
                self._hang_up()
                self._connection = Connection(self._door.accept()[0].detach())
            else:
                return

    def _answer(self) -> None:
        connection = self._connection
        assert connection is not None
        try:
            of_study, name, arguments, named = connection.recv()
            answer: tuple[Any, BaseException | None]
            try:
                found = getattr(self._trial.study if of_study else self._trial, name)
                answer = (found if arguments is None else found(*arguments, **named)), None
            except Exception as error:
                answer = None, error
            try:
                connection.send(answer)
            except Exception as error:  # what cannot be pickled
                connection.send(
                    (None, PostroomError(f"{name} cannot be sent to an agent: {error}"))
                )
        except (EOFError, OSError):
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def call_objective(objective: Callable[[Any], Any], address: str) -> Any:
    """Call the objective, in an agent."""
    with Client(address, "AF_UNIX") as connection:
        return objective(RemoteTrial(connection))


class _Asks:
    """Sends questions to the process of the study."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._turn = threading.Lock()

    def ask(self, of_study: bool, name: str, arguments: Any = None, named: Any = None) -> Any:
        """Return an attribute, or with arguments the result of a call."""
        with self._turn:
            try:
                self._connection.send((of_study, name, arguments, named))
                answer, error = self._connection.recv()
            except (EOFError, OSError) as lost:
                raise PostroomError("the program of the study has ended") from lost
        if error is not None:
            raise error
        return answer


class RemoteStudy:
    """The study of a trial, as its objective sees it in an agent: `stop`, `best_value`, ..."""

    def __init__(self, asks: _Asks) -> None:
        self._asks = asks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = getattr(optuna.Study, name, None)
        if callable(known):
            return lambda *arguments, **named: self._asks.ask(True, name, arguments, named)
        return self._asks.ask(True, name)


class _Remote:
    """What a trial in an agent has besides the members of Optuna's own."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._asks = _Asks(connection)
        self.study = RemoteStudy(self._asks)

    @property
    def _trial_id(self) -> int:
        found: int = self._asks.ask(False, "_trial_id")
        return found


def _member(name: str, member: object) -> Any:
    if isinstance(member, property):
        return property(lambda trial: trial._asks.ask(False, name), doc=member.__doc__)

    def method(trial: Any, /, *arguments: Any, **named: Any) -> Any:
        return trial._asks.ask(False, name, arguments, named)

    method.__name__, method.__doc__ = name, member.__doc__
    return method


# Whatever a trial of the installed version has.
RemoteTrial: Any = type(
    "RemoteTrial",
    (_Remote, BaseTrial),
    {name: _member(name, getattr(Trial, name)) for name in dir(Trial) if not name.startswith("_")},
)
