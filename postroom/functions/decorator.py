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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ..errors import PostroomError
from ..gpus.memory.booking import Need
from ..gpus.memory.profiles import Profiles
from ..store.base import default_base
from ..text.memory_sizes import to_mib
from . import in_process
from .function_address import address_of, keywords
from .function_kind import code_of, kind_of, type_of
from .notebook import is_interactive, write_module

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
    pickle: bool = False


class Function(Generic[P, R]):
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

    def __repr__(self) -> str:
        return f"<postroom.job {self.function.__qualname__}>"

    def __reduce__(self) -> Any:
        # By its name, as functions are pickled: `multiprocessing` pools need it.
        if self._instance is not None:
            return getattr, (self._instance, self.function.__name__)
        return self.function.__qualname__

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
        need = self._need(arguments, named)
        own = () if self._instance is None else (self._instance,)
        if self.stand_in is not None:
            light = functools.partial(self.stand_in, *own, *arguments, **named)
            in_process.measure(light, replace(need, name=f"{need.name} (stand-in)"))
        return in_process.run(
            functools.partial(self.function, *own, *arguments, **named),
            need,
            over=self.options.over,
            timeout_s=self.options.timeout_s if limited else None,
        )

    def submit(self, /, *arguments: P.args, **named: P.kwargs) -> Future[R]:
        """Run the function in a session of the base; its exception is the cause of a JobFailed."""
        return self._submit(arguments, named)

    def _submit(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Future[R]:
        from ..jobs import Job  # late: a call in this process does not need it
        from .futures import future_pool_for

        if "POSTROOM_SESSION" in os.environ:
            raise PostroomError(
                f"{self.function.__qualname__}.submit was called inside a session: put the code of "
                "the script that submits jobs under `if __name__ == '__main__':`"
            )
        options = self.options
        base = options.base or default_base()
        if self._instance is None and is_interactive(self.function):
            folder, task = write_module(self, base)
        else:
            folder, task = address_of(self.function)
        if type(self._instance).__module__ == "__main__":
            raise PostroomError(
                f"{task} is a method of a class of this script, which a session cannot import: "
                "move the class into a module"
            )
        own = () if self._instance is None else (self._instance,)
        job = Job(
            task,
            retries=options.retries,
            timeout_s=options.timeout_s,
            pickle=options.pickle,
        )
        job.arguments = keywords(inspect.signature(self.function), (*own, *arguments), named)
        return future_pool_for(base, folder, say=in_process.say).submit(job)

    def map(self, *iterables: Iterable[Any], timeout_s: float | None = None) -> Iterator[R]:
        """Submit one call per tuple of arguments; yield the results in order."""
        futures = [self._submit(arguments, {}) for arguments in zip(*iterables, strict=False)]
        return (future.result(timeout_s) for future in futures)

    def profile(self, stand_in: Callable[P, Any]) -> Callable[P, Any]:
        """Register a short stand-in, which is measured once in place of the function."""
        self.stand_in = stand_in
        return stand_in

    def _need(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Need:
        """Return what a call needs, and which kind of job it is."""
        function = self.function
        own = () if self._instance is None else (self._instance,)
        bound = inspect.signature(function).bind(*own, *arguments, **named)
        bound.apply_defaults()
        values = {key: bound.arguments[key] for key in bound.arguments if key != "self"}
        options = self.options
        kind = kind_of(function, values, type_=options.type, matters=options.matters)
        if self.stand_in is not None:
            kind = replace(kind, code=f"{kind.code}-{code_of(self.stand_in)}")
        return Need(
            kind,
            options.memory_mib,
            count=options.gpus,
            pack=options.policy == "pack",
            name=function.__qualname__,
        )

    def forget(self) -> bool:
        """Forget the measured memory of the function."""
        return Profiles().forget(self._type)

    @property
    def _type(self) -> str:
        return self.options.type or type_of(self.function)

    def arguments_of_decorator(self) -> str:
        """Return the source of the arguments that make the same job with `@postroom.job`."""
        options = self.options
        fields = {
            "memory": None if options.memory_mib is None else f"{options.memory_mib}M",
            "policy": options.policy,
            "type": self._type,
            "gpus": options.gpus,
            "timeout_s": options.timeout_s,
            "retries": options.retries,
            "over": options.over,
            "matters": options.matters,
            "pickle": options.pickle,
        }
        return ", ".join(f"{name}={value!r}" for name, value in fields.items())


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
    pickle: bool = False,
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
    pickle: bool = False,
) -> Any:
    """Make a function a job; use it bare or with options.

    `memory`: memory that a call needs per GPU ("6G", "500M"); by default it is measured.
    `policy`: "spread" takes the GPU with the most free memory, "pack" the fullest that fits.
    `type`: name of the profile with the measured memory; by default `file::function`.
    `gpus`: number of GPUs.
    `over`: if a call exceeds its reservation, "warn", "limit" (by torch) or "kill" it.
    `matters`: names of the arguments that determine the memory; by default this is learned.
    `timeout_s`, `retries`: time limit, and attempts after a failure.
    `base`: base for `submit`; by default POSTROOM_BASE or ./base.
    `pickle`: allow arguments of `submit` that only pickle can encode.
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
        pickle=pickle,
    )

    def decorate(function: Callable[..., Any]) -> Function[..., Any]:
        if inspect.iscoroutinefunction(function):
            raise PostroomError(
                f"{function.__qualname__} is a coroutine: a job must be a plain function"
            )
        return Function(function, options)

    return decorate if function is None else decorate(function)
