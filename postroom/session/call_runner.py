"""Running calls in a worker: enter the context of the program that sent them, then call.

A program's context is entered once in each worker: its import path, its working folder, its
initializer. What the initializer changes of the process stays, for all calls of that program.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ..calls.bound_globals import NOTHING, Bound, bound_by, giving
from ..calls.broken_pool import InitializerFailed
from ..calls.call import Call, CallContext, address_of, open_call
from .process_state import ProcessState


class CallRunner:
    """Makes the calls that come to one worker."""

    def __init__(self, state: ProcessState, *, shares: bool) -> None:
        self._state = state
        self._shares = shares  # each call books its part of a GPU
        self._entered: dict[str, CallContext] = {}  # by the name of the data
        self._bound: dict[str, Bound] = {}  # by their initializers
        self._current = ""
        self._calls = 0

    def run(
        self,
        name: str,
        context: Callable[[], Mapping[str, Any]],
        arguments: Mapping[str, Any],
        begin: Callable[[], None],
    ) -> Any:
        """Make a call, in the context of that name; return its result. `begin` is called first."""
        entered = self._enter(name, context)
        self._calls += 1
        if entered.most_calls is not None and self._calls >= entered.most_calls:
            self._state.used_up = f"it has made {self._calls} calls (max_tasks_per_child)"
        bound = self._bound.get(name)
        call = giving(bound, lambda: open_call(arguments)) if bound else open_call(arguments)
        arguments = {}  # what was pickled need not wait for the end of the call
        begin()
        if self._shares and not getattr(call.function, "books_itself", False):
            from .booked_task import call_booked

            title = address_of(call.function) or str(getattr(call.function, "__qualname__", "call"))
            return call_booked(title, lambda: _make(call), device=self._state.device)
        return _make(call)

    def _enter(self, name: str, read: Callable[[], Mapping[str, Any]]) -> CallContext:
        known = self._entered.get(name)
        if known is not None and name == self._current:
            return known
        context = known or CallContext(**read())
        # In the order of the program: what it would import, this worker imports, too.
        sys.path[:] = dict.fromkeys([*context.paths, *sys.path])
        with contextlib.suppress(OSError):  # it was removed
            os.chdir(context.folder)
        if known is None:
            _share_key(context.authkey)
            bound = self._initialize(context)
            if bound.names:
                self._bound[name] = bound
            self._entered[name] = context
        self._current = name
        self._state.save()
        return context

    def _initialize(self, context: CallContext) -> Bound:
        try:
            initializer = context.initializer()
            if initializer is None:
                return NOTHING
            return bound_by(initializer.function, lambda: _make(initializer))
        except BaseException as error:
            raise InitializerFailed(f"{type(error).__name__}: {error}") from error


def _share_key(key: bytes) -> None:
    if key:
        import multiprocessing

        multiprocessing.current_process().authkey = key


def _make(call: Call) -> Any:
    return call_here(call.function, call.kwargs, call.args)


def _end_fork() -> NoReturn:
    """End a forked child as Python ends a process, without what belongs to its parent."""
    error = sys.exc_info()[1]
    code = 1 if error else 0
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def call_here(
    function: Callable[..., Any],
    named: Mapping[str, Any],
    positional: Sequence[Any] = (),
    *,
    process_id: Callable[[], int] = os.getpid,
    end: Callable[[], NoReturn] = _end_fork,
) -> Any:
    """Call a kernel; a process that the kernel forked ends here, and never becomes a second worker.

    A child that returned further would publish results and empty the mailbox of its parent.
    """
    worker = process_id()
    try:
        return function(*positional, **named)
    finally:
        if process_id() != worker:
            end()
