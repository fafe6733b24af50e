"""`@postroom.job`: a function that waits for enough GPU memory, and measures how much it needs.

@postroom.job
def train(data, batch=64): ...

train(data)                   # runs in this process, once a GPU is granted
future = train.submit(data)   # runs in a session of the base; returns a standard Future
train.map(files)              # submits many calls; yields the results in order

@train.profile                # a short stand-in with the same arguments, measured in its place
def _(data, batch=64): ...
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ..calls.by_value import ByValue
from ..errors import PostroomError
from ..gpus.memory.booking import Need
from ..gpus.memory.profiles import Kind, Profiles
from ..store.base import default_base
from ..text.safe_text import say
from ..text.sizes import to_mib
from . import in_process
from .function_kind import call_of, code_of, type_of

P = ParamSpec("P")
R = TypeVar("R")

POLICIES = ("spread", "pack")
OVER = ("warn", "limit", "kill")


@dataclass(frozen=True)
class FunctionOptions:
    """The options of the decorator."""

    memory_mib: int | None = None
    policy: str = "spread"
    type: str | None = None
    gpus: int = 1
    timeout_s: float | None = None
    retries: int = 0
    over: str = "warn"
    matters: tuple[str, ...] | None = None
    base: str | None = None


class Function(ByValue, Generic[P, R]):
    """A decorated function; it keeps its signature and its docstring."""

    books_itself = True  # a session that shares its card does not reserve memory for it

    def __init__(
        self, function: Callable[P, R], options: FunctionOptions, *, instance: Any = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.options = options
        self.function = function
        self._instance = instance
        self.stand_in: Callable[..., Any] | None = None
        self._code: str | None = None

    def __repr__(self) -> str:
        return f"<postroom.job {self.function.__qualname__}>"

    def __reduce__(self) -> Any:
        # By its name, as functions are pickled: `multiprocessing` pools need it.
        if self._instance is not None:
            return getattr, (self._instance, self.function.__name__)
        return self.function.__qualname__

    def reduce_by_value(self) -> Any:
        """For a session: with its code, if the session cannot import it."""
        from ..calls.call import address_of

        if self._instance is not None or address_of(self) is not None:
            return NotImplemented
        return _rebuilt, (self.function, self.options, self.stand_in, self.code)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound: Function[..., R] = Function(self.function, self.options, instance=instance)
        bound.stand_in = self.stand_in
        return bound

    def __call__(self, /, *arguments: P.args, **named: P.kwargs) -> R:
        """Run the function in this process, on a GPU with enough free memory."""
        # In a session, the base enforces retries and the time limit.
        in_session = "POSTROOM_SESSION" in os.environ
        retries = 0 if in_session else self.options.retries
        while True:
            try:
                return self._run(arguments, named, limited=not in_session)
            except Exception:
                if retries <= 0:
                    raise
                retries -= 1

    def _run(self, arguments: Any, named: Any, *, limited: bool) -> R:
        function = functools.partial(self.function, *self._own, *arguments, **named)
        if in_process.is_on_cpu_session():
            return function()  # there is nothing to reserve, and nothing to measure
        need = self._need(arguments, named)
        if self.stand_in is not None:
            light = functools.partial(self.stand_in, *self._own, *arguments, **named)
            in_process.measure(light, replace(need, name=f"{need.name} (stand-in)"))
        return in_process.run(
            function,
            need,
            over=self.options.over,
            timeout_s=self.options.timeout_s if limited else None,
        )

    def submit(self, /, *arguments: P.args, **named: P.kwargs) -> Future[R]:
        """Run the function in a session of the base; its exception comes back as itself."""
        return self._submit(arguments, named)

    def _submit(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Future[R]:
        from ..calls.call import CALL, pack_call  # late: a call in this process does not need them
        from ..jobs import Job
        from .futures import future_pool_for

        name = self.function.__qualname__
        if "POSTROOM_SESSION" in os.environ:
            raise PostroomError(
                f"{name}.submit was called inside a session: put the code of the script that "
                "submits jobs under `if __name__ == '__main__':`"
            )
        options = self.options
        self._signature.bind(*self._own, *arguments, **named)  # a wrong call fails here and now
        job = Job(CALL, **pack_call(self, arguments, named))
        job.options(name=name, retries=options.retries, timeout_s=options.timeout_s)
        return future_pool_for(options.base or default_base(), say=say).submit(job)

    def map(self, *iterables: Iterable[Any], timeout_s: float | None = None) -> Iterator[R]:
        """Submit one call per tuple of arguments; yield the results in order.

        TimeoutError: not all were there `timeout_s` after the call. What waits is cancelled then,
        and when the results are not taken to the end.
        """
        from ..futures.in_order import results_in_order

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        submitted = (self._submit(arguments, {}) for arguments in zip(*iterables, strict=False))
        return results_in_order(submitted, None, deadline)

    def profile(self, stand_in: Callable[P, Any]) -> Callable[P, Any]:
        """Register a short stand-in, which is measured once in place of the function."""
        self.stand_in = stand_in
        self._code = None
        return stand_in

    def _need(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Need:
        """Return what a call needs, and which kind of job it is."""
        bound = self._signature.bind(*self._own, *arguments, **named)
        bound.apply_defaults()
        values = {key: bound.arguments[key] for key in bound.arguments if key != "self"}
        options = self.options
        kind = Kind(self._type, self.code, call_of(values, options.matters))
        return Need(
            kind,
            options.memory_mib,
            count=options.gpus,
            pack=options.policy == "pack",
            name=self.function.__qualname__,
        )

    @property
    def code(self) -> str:
        """The version of the function, and of its stand-in."""
        if self._code is None:
            self._code = code_of(self.function)
            if self.stand_in is not None:
                self._code += f"-{code_of(self.stand_in)}"
        return self._code

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @property
    def _own(self) -> tuple[Any, ...]:
        return () if self._instance is None else (self._instance,)

    def forget(self) -> bool:
        """Forget the measured memory of the function."""
        return Profiles().forget(self._type)

    @property
    def _type(self) -> str:
        return self.options.type or type_of(self.function)


def _rebuilt(
    function: Callable[..., Any],
    options: FunctionOptions,
    stand_in: Callable[..., Any] | None,
    code: str,
) -> Function[..., Any]:
    """A decorated function that came by value; its source is known only where it comes from."""
    made: Function[..., Any] = Function(function, options)
    made.stand_in, made._code = stand_in, code
    return made


@overload
def job(function: Callable[P, R], /) -> Function[P, R]: ...


@overload
def job(
    *,
    memory: str | None = None,
    policy: str = "spread",
    type: str | None = None,
    gpus: int = 1,
    timeout_s: float | None = None,
    retries: int = 0,
    over: str = "warn",
    matters: Sequence[str] | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    memory: str | None = None,
    policy: str = "spread",
    type: str | None = None,
    gpus: int = 1,
    timeout_s: float | None = None,
    retries: int = 0,
    over: str = "warn",
    matters: Sequence[str] | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Any:
    """Make a function a job; use it bare or with options.

    `memory`: memory that a call needs per GPU ("6G", "500M"); by default it is measured.
    `policy`: "spread" takes the GPU with the most free memory, "pack" the fullest that fits.
    `type`: name of the profile with the measured memory; by default `file::function`.
    `gpus`: number of GPUs.
    `over`: if a call exceeds its reservation, "warn", "limit" (by torch) or "kill" it.
    `matters`: names of the arguments that determine the memory; by default this is learned.
    `timeout_s`, `retries`: time limit, and attempts after a failure.
    `base`: base for `submit`; by default POSTROOM_BASE or your own queue.
    """
    if policy not in POLICIES:
        raise PostroomError(f"policy={policy!r} is unknown: use {' or '.join(POLICIES)}")
    if over not in OVER:
        raise PostroomError(f"over={over!r} is unknown: use {' or '.join(OVER)}")
    options = FunctionOptions(
        memory_mib=None if memory is None else to_mib(str(memory)),
        policy=policy,
        type=type,
        gpus=gpus,
        timeout_s=timeout_s,
        retries=retries,
        over=over,
        matters=None if matters is None else tuple(matters),
        base=None if base is None else os.fspath(base),
    )

    def decorate(function: Callable[..., Any]) -> Function[..., Any]:
        if inspect.iscoroutinefunction(function):
            raise PostroomError(
                f"{function.__qualname__} is a coroutine: a job must be a plain function"
            )
        return Function(function, options)

    return decorate if function is None else decorate(function)
