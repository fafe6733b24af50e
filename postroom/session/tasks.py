"""Running tasks in the worker: import the function, pass it its arguments, take what it returns.

Kernels are imported from the user's folder, always from source: an edited file is a new version
even if its time stamp has not changed. A version is chosen once per run, never in the middle,
unless a failed job is run again.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import importlib.machinery
import inspect
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from ..calls.by_value import BY_VALUE, FUNCTION
from ..calls.call import CALL, mentions, open_function, pack_exception, pack_result
from ..errors import KernelError, OtherVersionError
from ..gpus.devices.device import MIB, Device, open_device
from ..gpus.devices.out_of_memory import says_out_of_memory
from ..gpus.devices.pinned import PinnedBuffer
from ..parcel.container import Buffer
from ..parcel.jsonable import POSITIONAL, weight
from ..parcel.sheets import Failure, JobEnd, JobOptions, JobSheet, Outcome, unpack_data
from ..parcel.tensors import is_tensor
from ..store.files import Files
from ..store.journal import Journal
from ..store.runs import RunInfo, read_parcel_bytes
from ..store.task_source import find_source, version_of
from .array_libraries import (
    are_loaded,
    converter_to,
    library_asked_for,
    synchronise,
    to_numpy,
)
from .batches import MOST_JOBS, split, stack
from .call_runner import CallRunner, call_here
from .inbox import PUBLISH_BYTES, Alike
from .job_seed import JobSeed
from .memory_growth import GROWTH_MIB, MemoryGrowth
from .process_state import ProcessState
from .shared_data import SharedData, SharedDataChanged
from .task_output import KernelOutput

# In a run of small calls, modules are compared with their files this often at most.
LOOK_S = 0.5

_PLAIN = JobOptions()
# What kernels are passed if they name it.
_GIVEN = frozenset(("shared", "device", "devices"))
# In a clone, Postroom itself lies in the project's folder. It is never reloaded.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


INSTALLED = "installed"  # the version of a kernel that does not come from the project
# Garbage is collected for the sake of a card's memory at most so often when runs change.
FREE_EVERY_S = 1.0
# A session that has been idle for so long gives cached memory back, and drops shared data.
CACHE_IDLE_S = 10.0
SHARED_IDLE_S = 600.0


class Tasks:
    """Runs the jobs of one worker, on one device."""

    def __init__(
        self,
        files: Files,
        data_path: Callable[[str], str],
        journal: Journal,
        *,
        gpu: str = "cpu",
        any_accelerator: bool = False,
        shares: bool = False,
        output: KernelOutput | None = None,
    ) -> None:
        """`gpu`: the uuids of the session's cards, or "cpu"; DeviceMissing: torch can't use them.

        `any_accelerator`: no card is known, and torch may use one that Postroom cannot list.
        """
        self._files = files
        self._data_path = data_path
        self._journal = journal
        self._shares = shares
        self._output = output
        self._run = ""
        self._attempt = 0  # in the environment of the last job
        self.state = ProcessState()
        self._calls = CallRunner(self.state, shares=shares)
        self._import_folder = ""
        self._look_at = 0.0  # when to see whether a kernel was edited
        self._loaded: dict[str, _Task] = {}
        self._shared_digest: str | None = None
        self._shared: dict[bool, SharedData] = {}  # as arrays, as tensors
        self._shared_used_at = 0.0
        self._batch_jobs: dict[str, int] = {}  # by task: how many jobs the next batch may have
        self._in_use: SharedData | None = None  # what the current job was passed
        self._places = False  # whether a job was passed tensors
        self._pinned = PinnedBuffer(lambda nbytes: self.state.device.pin(nbytes))
        self._growth = MemoryGrowth()
        self._freed_at = 0.0
        self._modules = 0  # how many were loaded when it was last seen what they use
        self._seed = JobSeed()
        self._draws = False  # whether jobs may draw random numbers
        self._gpu, self._any_accelerator = gpu, any_accelerator
        self._device: Device | None = None
        self._choose_device()

    def run_job(self, info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
        """Run one job; an error in it is its outcome."""
        started = time.perf_counter()
        self._begin_job(info.run, job, attempt)
        if attempt != self._attempt:
            self.state.set_variable("POSTROOM_ATTEMPT", str(attempt))
            self._attempt = attempt
        try:
            if info.run != self._run or sheet.options.rerun_of or self._is_new_call(info, started):
                self._begin_run(info)
            if sheet.task == CALL:
                self.state.torch.watching = True
                value = self._make_call(info, sheet, job)
            else:
                kernel = self._loaded.get(sheet.task)
                if kernel is None:
                    kernel = self._load(info, sheet.task)
                    # Letters are as long as jobs are short, and this is not part of the job.
                    started = time.perf_counter()
                if self._draws:
                    self._seed_job(info.run, job)
                value = self._call(kernel, info, sheet, job)
            value = self._returned(value)
            self._check_shared()
            if sheet.task == CALL:
                value = pack_result(value)
            if sheet.options.batched and self._batch_jobs.get(sheet.task, 1) < 2:
                self._batch_jobs[sheet.task] = 2
            return _job_end(value, time.perf_counter() - started)
        except BaseException as error:
            self._batch_jobs.pop(sheet.task, None)
            if isinstance(error, OtherVersionError) and error.path == self._shared_path(info):
                raise
            failure = _failure(error, is_call=sheet.task == CALL)
            if self._device is None and are_loaded():
                self._look_at_libraries()
        finally:
            self._end_job()
        return JobEnd(failure=failure, seconds=time.perf_counter() - started)

    def _begin_job(self, run: str, job: int, attempt: int) -> None:
        if self._output is not None:
            self._output.job = run, job, attempt
        self.state.set_job(f"{run}/{job}".encode())

    def _check_shared(self) -> None:
        if self._in_use is not None and (changed := self._in_use.changed()):
            raise SharedDataChanged(changed)

    def _end_job(self) -> None:
        if self._in_use is not None:
            self._put_shared_back()
        if self._output is not None and self._output.unfinished:
            self._output.flush()

    def run_alike(
        self, info: RunInfo, sheet: JobSheet, jobs: range, attempt: int, descriptor: int = -1
    ) -> Alike | None:
        """Run neighbours of a parcel one after the other, as they are asked for; see `run_job`.

        What they have in common is done once, so this takes a quarter of the time. None: one of
        them needs more than a call with its arguments as they were sent.
        """
        kernel = self._loaded.get(sheet.task)
        if kernel is None or info.run != self._run or attempt != self._attempt or self._shares:
            return None
        if sheet.options._replace(batched=False, retries=0, pickle=False, tensors=False) != _PLAIN:
            return None
        if self._is_new_call(info, time.perf_counter()):
            self._run = ""  # the next job loads it again
            return None
        if sheet.options.batched:
            jobs = jobs[: self._batch_jobs.get(sheet.task, 1)]
            if len(jobs) < 2 or sheet.task == BY_VALUE:
                return None
            ends = self._run_batch(kernel, info, sheet, jobs, attempt, descriptor)
            return Alike(ends, together=len(jobs))
        if self.device.count or are_loaded() or sheet.options.tensors:
            return None
        try:
            names = tuple(sheet.arguments(jobs.start))
            if not kernel.is_plain(names):  # before the others are decoded
                return None
            passed = sheet.arguments_of(jobs.start, jobs.stop)
            if list(map(tuple, passed)).count(names) < len(passed):
                return None
            given = self._given(kernel, info, names, tensors=False)
        except Exception:  # unreadable arguments, or shared data
            return None  # each job says so for itself
        function = partial(kernel.function, **given) if given else kernel.function
        shared, self._in_use = self._in_use, None
        return Alike(self._run_alike(function, info.run, jobs, attempt, passed, shared, descriptor))

    def _run_alike(
        self,
        function: Callable[..., Any],
        run: str,
        jobs: range,
        attempt: int,
        passed: list[dict[str, Any]],
        shared: SharedData | None,
        descriptor: int,
    ) -> Iterator[JobEnd]:
        state, output, clock = self.state, self._output, time.perf_counter
        prefix = f"{run}/".encode()
        modules = len(sys.modules)
        passed.reverse()  # so that each is dropped with its job
        for job in jobs:
            if output is not None:
                output.job = run, job, attempt
            state.set_job(b"%b%d" % (prefix, job))
            started = clock()
            try:
                if self._draws:
                    self._seed_job(run, job)
                value = call_here(function, passed.pop())
                if len(sys.modules) != modules:
                    value = self._returned(value)
                if shared is not None and (changed := shared.changed()):
                    raise SharedDataChanged(changed)
                done = _job_end(value, clock() - started)
            except BaseException as error:
                if shared is not None and shared.changed():
                    self._shared.clear()  # no other job comes before they are loaded again
                done = JobEnd(failure=_failure(error, is_call=False), seconds=clock() - started)
            if output is not None and output.unfinished:
                output.flush()
            value = None
            self.restore(descriptor, done.seconds)
            yield done
            if done.failure or state.used_up or len(sys.modules) != modules:
                return

    def _run_batch(
        self,
        kernel: _Task,
        info: RunInfo,
        sheet: JobSheet,
        jobs: range,
        attempt: int,
        descriptor: int,
    ) -> Iterator[JobEnd]:
        """Run jobs in one call. If it fails, none of them has ended, and the next has half as many.

        So a job that fails does so alone, and the others of its batch do not.
        """
        started = time.perf_counter()
        self._begin_job(info.run, jobs.start, attempt)
        ends: list[JobEnd] = []
        try:
            if self._draws:
                self._seed_job(info.run, jobs.start)
            values = self._call_batch(kernel, info, sheet, jobs)
            self._check_shared()
            each = (time.perf_counter() - started) / len(jobs)
            ends = [_job_end(value, each) for value in values]
            self._batch_jobs[sheet.task] = min(2 * len(jobs), MOST_JOBS)
        except BaseException as error:
            self._batch_jobs[sheet.task] = max(len(jobs) // 2, 1)
            if self.device.count:
                self._look_behind_batch(error)
        self._end_job()
        self.restore(descriptor, time.perf_counter() - started)
        yield from ends

    def _look_behind_batch(self, error: BaseException) -> None:
        """If a batch has left the card unusable, no job of it is to blame: a new worker tries."""
        try:
            self.device.synchronise()
            self.device.free()  # it may have been too large
        except Exception:
            said = f"{type(error).__name__}: {error}"
            self.state.used_up = f"a batch left its context on the GPU unusable ({said:.200})"

    def _call_batch(self, kernel: _Task, info: RunInfo, sheet: JobSheet, jobs: range) -> list[Any]:
        """What one call for many jobs returns, for each of them."""
        arguments = stack(sheet.arguments_of(jobs.start, jobs.stop))
        self._complete(kernel, info, arguments, all_tensors=sheet.options.tensors)
        return split(self._returned(call_here(kernel.function, arguments)), len(jobs))

    def _returned(self, value: Any) -> Any:
        """What a kernel returned, as it travels."""
        if are_loaded():
            value = each_leaf(value, to_numpy)
            synchronise(card=self._device is None)
        if self._device is None or self._device.count:
            # The job ends when its work on the card has: an error that surfaces later would be
            # taken for that of the next job.
            value = self._finished(value)
        return value

    @property
    def used_up(self) -> str:
        """Why this process can run no more jobs, if it cannot."""
        return self.state.used_up

    def restore(self, descriptor: int, seconds: float) -> None:
        """Put back what a job changed of the process and of torch; it took so many seconds."""
        if len(sys.modules) != self._modules:
            self._see_what_is_used()
        self.state.restore(descriptor)
        if self._device is not None and self._device.count:
            grown = self._growth.after_job(self._device, seconds)
            if grown and not self.state.used_up:
                self.state.used_up = grown

    def after_failure(self, failure: Failure) -> None:
        """Memory that earlier jobs left behind must not fail the next ones, too."""
        ran_out = says_out_of_memory(f"{failure.kind}: {failure.message}")
        if ran_out and not self.state.used_up:
            kept_mib = self.device.memory().allocated_mib
            shared_mib = sum(data.nbytes for data in self._shared.values()) // MIB
            if kept_mib - shared_mib >= GROWTH_MIB:
                self.state.used_up = f"a job ran out of memory, and {kept_mib} MiB stay in use"

    def release(self, *, shared: bool = False) -> None:
        """Give back the card's memory that no job needs now: others want it."""
        if self.device.count:
            if shared:
                self._shared.clear()
            with contextlib.suppress(Exception):  # a broken context: the worker is replaced
                if self.device.memory().reserved_mib:
                    self.device.free()

    def idle(self, seconds: float) -> None:
        """Nothing has run for a while: drop what is least likely to be used again."""
        unused_s = time.monotonic() - self._shared_used_at
        if self._shared and min(seconds, unused_s) >= SHARED_IDLE_S:
            self._shared.clear()
            self._journal.log("info", "shared data that nobody has used for a while was dropped")
            self.device.free()
        elif seconds >= CACHE_IDLE_S and self.device.count:
            with contextlib.suppress(Exception):
                memory = self.device.memory()
                if memory.reserved_mib > memory.allocated_mib:
                    self.device.empty_cache()

    @property
    def device(self) -> Device:
        """What jobs compute on; the CPU until torch is loaded, which is needed to use a card."""
        if self._device is None and "torch" in sys.modules:
            self._choose_device()
        return self.state.device

    def _choose_device(self) -> None:
        if self._device is None:
            self._device = open_device(self._gpu, any_accelerator=self._any_accelerator)
            if self._device is not None:
                self.state.device = self._device
                if self._device.count:
                    self.state.torch.watching = self._draws = True
                self.state.torch.save(self._device)

    def _call(self, kernel: _Task, info: RunInfo, sheet: JobSheet, job: int) -> Any:
        if sheet.options.batched and sheet.task != BY_VALUE:
            return self._call_batch(kernel, info, sheet, range(job, job + 1))[0]
        arguments = sheet.arguments(job)
        all_tensors = sheet.options.tensors
        if sheet.task == BY_VALUE:
            kernel = _Task(open_function(arguments.pop(FUNCTION)))
        positional: list[Any] = list(arguments.pop(POSITIONAL, ()))

        def call() -> Any:
            rest = kernel
            if positional:
                for at, name in enumerate(given := kernel.first_names(len(positional))):
                    if all_tensors or kernel.wants_tensor(name):
                        positional[at] = self._place(positional[at])
                rest = kernel.without(given)
            self._complete(rest, info, arguments, all_tensors=all_tensors)
            return call_here(kernel.function, arguments, positional)

        if not self._shares or getattr(kernel.function, "books_itself", False):
            return call()
        from .booked_task import call_booked

        title = sheet.task
        if sheet.task == BY_VALUE:
            title = str(getattr(kernel.function, "__qualname__", title))
        # Nothing of the job reaches a card before its memory is booked, or stays there afterwards.
        return call_booked(title, lambda: self._finished(call()), device=self.device)

    def _complete(
        self, kernel: _Task, info: RunInfo, arguments: dict[str, Any], *, all_tensors: bool
    ) -> None:
        """Give a kernel its arguments as it asks for them, and what it names beside them."""
        for name in arguments:
            if all_tensors or kernel.wants_tensor(name):
                arguments[name] = self._place(arguments[name])
            elif library := kernel.asks_for(name):
                arguments[name] = each_leaf(arguments[name], converter_to(library))
        if kernel.wants_more:
            tensors = all_tensors or kernel.wants_tensor("shared")
            arguments.update(self._given(kernel, info, arguments, tensors=tensors))

    def _given(
        self, kernel: _Task, info: RunInfo, passed: Collection[str], *, tensors: bool
    ) -> dict[str, Any]:
        """What a kernel names beside its arguments; `tensors`: its shared data as such."""
        given: dict[str, Any] = {}
        if kernel.names("shared") and "shared" not in passed:
            self._in_use = shared = self._get_shared(info.shared, tensors=tensors)
            given["shared"] = shared.value if shared is not None else None
        if kernel.names("device") and "device" not in passed:
            given["device"] = self.device.for_kernels()
        if kernel.names("devices") and "devices" not in passed:
            given["devices"] = self.device.all_for_kernels()
        return given

    def _place(self, value: Any) -> Any:
        """An argument as tensors on the device."""
        self._places = True
        return to_device(value, self.device)

    def read_ahead(self, data: Buffer) -> Buffer | None:
        """Copy the next parcel to where the card reads it fast; None: it is as well in its file.

        Called by another thread, while a job runs.
        """
        return self._pinned.copy(data) if self._places and self.state.device.count else None

    def _finished(self, value: Any) -> Any:
        """What a job returned, once all its work on the device has ended."""
        device = self.device
        if device.count:
            device.synchronise()
            value = to_host(value, device)
        return value

    def _look_at_libraries(self) -> None:
        """After a failed job: see whether a card that only other libraries use can be used."""
        try:
            synchronise(card=True)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self.state.used_up = f"a job left its context on the GPU unusable ({said})"

    def _make_call(self, info: RunInfo, sheet: JobSheet, job: int) -> Any:
        def context() -> Any:
            shared = self._get_shared(info.shared, tensors=False)
            return shared.value if shared is not None else None

        arguments = sheet.plain(job)
        mentioned = mentions(arguments, "torch", "random")

        def begin() -> None:
            # Its module was imported just now.
            if len(sys.modules) != self._modules:
                self._see_what_is_used()
            if mentioned or self._draws:
                self._seed_job(info.run, job)

        return self._calls.run(info.shared or "", context, arguments, begin)

    def _shared_path(self, info: RunInfo) -> str:
        return self._data_path(info.shared) if info.shared is not None else ""

    def _get_shared(self, digest: str | None, *, tensors: bool) -> SharedData | None:
        """The run's shared data, read and put onto the device once per session."""
        if digest is None:
            return None
        if digest != self._shared_digest:
            self._shared.clear()  # first: the GPU may have memory for only one
            self._shared_digest = digest
        if tensors not in self._shared:
            started = time.perf_counter()
            path = self._data_path(digest)
            value = unpack_data(path, read_parcel_bytes(self._files, path))
            nbytes = weight(value)
            self._shared[tensors] = SharedData(to_device(value, self.device) if tensors else value)
            self._journal.event(
                "shared loaded",
                data=digest,
                bytes=nbytes,
                device=str(self.device) if tensors else "host",
                seconds=round(time.perf_counter() - started, 6),
            )
        return self._shared[tensors]

    def _is_new_call(self, info: RunInfo, now: float) -> bool:
        """Whether to see if a kernel was edited, in a run that many small calls share."""
        if not info.calls or now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        return self._changed()

    def _put_shared_back(self) -> None:
        """A job that was passed shared data has ended: if it changed them, load them again."""
        assert self._in_use is not None
        if self._in_use.changed():
            self._shared.clear()
        self._in_use = None
        self._shared_used_at = time.monotonic()

    def _begin_run(self, info: RunInfo) -> None:
        now = time.monotonic()
        if self._run and self.device.count and now >= self._freed_at + FREE_EVERY_S:
            self._freed_at = now
            self.release()
        if info.import_folder != self._import_folder or self._changed():
            self._unload()
            self._import_folder = info.import_folder
            _import_from_source(info.import_folder)
            with contextlib.suppress(OSError):  # kernels open files in their own folder
                os.chdir(info.import_folder)
        self._run = info.run
        self._loaded.clear()

    def _load(self, info: RunInfo, task: str) -> _Task:
        module_name, _, function_name = task.partition(":")
        try:
            module = importlib.import_module(module_name)
            function: Any = module
            for part in function_name.split("."):
                function = getattr(function, part)
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}"
            raise KernelError(f"cannot import task {task!r}: {what}") from error
        version = _version_of_module(module)
        asked = info.kernels.get(task, "")
        self._journal.event("kernel", run=info.run, task=task, version=version, asked=asked)
        self._journal.log("info", f"run {info.run} uses version {version} of {task}")
        if asked and asked != version and not info.calls:
            self._journal.log(
                "warning",
                f"{task} changed after run {info.run} was submitted: version {version} runs, "
                f"{asked} was submitted",
            )
        kernel = self._loaded[task] = _Task(function)
        self._choose_device()  # the kernel may have imported torch
        self._see_what_is_used(installed=version == INSTALLED)
        self.state.save()
        return kernel

    def _see_what_is_used(self, *, installed: bool = False) -> None:
        """See whether jobs may use torch, or draw random numbers: else nobody looks after these."""
        self._modules = len(sys.modules)
        if not (self.state.torch.watching and self._draws):
            said = [_mentions(path) for path, _ in _project_modules()]
            self.state.torch.watching |= installed or any(b"torch" in words for words in said)
            self._draws |= installed or any(said)

    def _seed_job(self, run: str, job: int) -> None:
        self._seed.begin(run, job, torch=self.state.torch, device=self.state.device)

    def _changed(self) -> bool:
        """Whether any module that came from the project's folder has been edited since."""
        return any(
            _read_version(path) != getattr(module, "__postroom_version__", None)
            for path, module in _project_modules()
        )

    def _unload(self) -> None:
        self._loaded.clear()
        modules = _project_modules()
        for _, module in modules:
            sys.modules.pop(module.__name__, None)
        importlib.invalidate_caches()
        if modules:
            # Their globals, a model perhaps, are garbage in cycles: the next ones need its memory.
            modules.clear()
            del module
            gc.collect()
            self.release()


def _own_references() -> int:
    """What refers to a result that nobody else has, as `_job_end` counts; it depends on Python."""

    def count(value: object) -> int:
        return sys.getrefcount(value)

    value = object()
    return count(value)


_OWN_REFERENCES = _own_references()


def _job_end(value: Any, seconds: float) -> JobEnd:
    """How a job ended that has returned; the kernel can't change it any more, if it is small."""
    if type(value) is np.ndarray:
        nbytes = value.nbytes
        if nbytes < PUBLISH_BYTES and (
            sys.getrefcount(value) > _OWN_REFERENCES or not value.flags.owndata
        ):
            value = value.copy()
        return JobEnd(value, None, seconds, nbytes)
    nbytes = weight(value)
    if nbytes < PUBLISH_BYTES:
        try:
            value = own(value)
        except Exception:  # it cannot be copied: publish it at once
            nbytes = PUBLISH_BYTES
    return JobEnd(value, None, seconds, nbytes)


def _failure(error: BaseException, *, is_call: bool) -> Failure:
    """How a job ended that has raised an error; a call gets it back as it was."""
    message = str(error)
    if isinstance(error, SystemExit) and not is_call:
        message = f"the kernel called sys.exit({error.code!r}): return or raise instead"
    # From the first frame that is not ours: how a worker calls a kernel helps nobody.
    frame = start = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.tb_next
    text = "".join(traceback.format_exception(type(error), error, frame or start))
    exception = pack_exception(error) if is_call else ""
    return Failure(Outcome.FAILED, type(error).__name__, message, text, exception)


class _Task:
    """A function, and the parameters that its signature names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        try:
            self._parameters = dict(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # a builtin may have no signature to read
            self._parameters = {}
        self._rest = next(
            (p for p in self._parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD), None
        )
        self._tensors: dict[str, bool] = {}
        self._libraries: dict[str, str] = {}

    @property
    def wants_more(self) -> bool:
        """Whether it may be passed something beside its arguments."""
        return not _GIVEN.isdisjoint(self._parameters)

    def names(self, name: str) -> bool:
        return name in self._parameters

    def is_plain(self, names: Collection[str]) -> bool:
        """Whether it takes these arguments as they were sent, and shared data as arrays."""
        if POSITIONAL in names or FUNCTION in names:
            return False
        taken = [*names, "shared"] if self.names("shared") else names
        return not any(self.wants_tensor(name) or self.asks_for(name) for name in taken)

    def first_names(self, count: int) -> list[str]:
        """The names of the first parameters, which are passed by their position."""
        return list(self._parameters)[:count]

    def without(self, given: list[str]) -> _Task:
        """The same function, of which these parameters are given."""
        rest = copy.copy(self)
        rest._parameters = {n: p for n, p in self._parameters.items() if n not in given}
        return rest

    def wants_tensor(self, name: str) -> bool:
        """Whether a parameter is annotated with a tensor, or a container of them."""
        known = self._tensors.get(name)
        if known is None:
            known = self._tensors[name] = self._is_tensor(name)
        return known

    def asks_for(self, name: str) -> str:
        """The library whose arrays a parameter is annotated with: JAX or CuPy."""
        known = self._libraries.get(name)
        if known is None:
            parameter = self._parameters.get(name, self._rest)
            annotation = "" if parameter is None else parameter.annotation
            known = self._libraries[name] = library_asked_for(annotation)
        return known

    def _is_tensor(self, name: str) -> bool:
        parameter = self._parameters.get(name, self._rest)
        if parameter is None or parameter.annotation is inspect.Parameter.empty:
            return False
        annotation = parameter.annotation
        return "Tensor" in (annotation if isinstance(annotation, str) else repr(annotation))


# The names of the modules that were ever loaded from a project.
_of_project: set[str] = set()


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles from source: Python takes a .pyc for fresh if an edit keeps second and size."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        _of_project.add(module.__name__)
        module.__postroom_version__ = _read_version(self.path)  # type: ignore[attr-defined]
        super().exec_module(module)


def _import_from_source(project: str) -> None:
    """Put a project first on the import path, with a finder that never trusts a cache."""
    if project in sys.path:
        sys.path.remove(project)
    sys.path.insert(0, project)
    loaders = (
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_SourceLoader, importlib.machinery.SOURCE_SUFFIXES),
    )

    def finder(path: str) -> importlib.machinery.FileFinder:
        inside = path == project or path.startswith(project + os.sep)
        ours = path.startswith(_PACKAGE) or f"{os.sep}site-packages" in path
        if not inside or ours or not os.path.isdir(path):
            raise ImportError
        return importlib.machinery.FileFinder(path, *loaders)

    finder.postroom = True  # type: ignore[attr-defined]
    sys.path_hooks[:] = [hook for hook in sys.path_hooks if not hasattr(hook, "postroom")]
    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()


def _project_modules() -> list[tuple[str, ModuleType]]:
    """The modules that came from the project, with their files."""
    found = []
    for module in filter(None, map(sys.modules.get, list(_of_project))):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and hasattr(module, "__postroom_version__"):
            found.append((path, module))
    return found


def _read_version(path: str) -> str | None:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return version_of(file.read())
    return None


def _version_of_module(module: ModuleType) -> str:
    return str(getattr(module, "__postroom_version__", None) or INSTALLED)


def _mentions(path: str) -> list[bytes]:
    """Which of the words a source file has that say that its kernels need looking after."""
    words = [b"torch", b"random"]
    with contextlib.suppress(OSError), open(path, "rb") as file:
        source = file.read()
        return [word for word in words if word in source]
    return words


def to_device(value: Any, device: Device) -> Any:
    """Turn the arrays of a value into tensors, and put all its tensors onto the device."""
    if isinstance(value, np.ndarray):
        return _tensor(value, device)
    if is_tensor(value):
        return device.put(value)
    return _each(value, lambda item: to_device(item, device))


def to_host(value: Any, device: Device) -> Any:
    """Copy the arrays of a result that are on the device into memory of this process."""
    if device.holds(value):
        return device.to_host(value)
    return _each(value, lambda item: to_host(item, device))


def each_leaf(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change what is in dicts, lists and tuples, however deep; or the value itself."""
    changed = _each(value, lambda item: each_leaf(item, change))
    return change(value) if changed is value else changed


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same dict, list or tuple of changed items; any other value as it is."""
    if isinstance(value, dict):
        made = {} if type(value) is dict else copy.copy(value)
        made.update((key, change(item)) for key, item in value.items())
        return made
    if type(value) is list:
        return [change(item) for item in value]
    if isinstance(value, tuple):
        return tuple.__new__(type(value), [change(item) for item in value])
    return value


def _tensor(array: Any, device: Device) -> Any:
    import torch

    if not device.count or array.dtype.byteorder == ">":
        # A parcel's memory is read-only, a tensor is not: on the CPU it needs a copy of its own.
        array = array.astype(array.dtype.newbyteorder("="), copy=True)
    if not device.count:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is read-only, and only read, to copy it to the card
        tensor = torch.from_numpy(array)
    return device.put(tensor)


def own(value: Any) -> Any:
    """Copy the arrays of a result, since the kernel may fill the same buffer again.

    TypeError: it holds something that may change, and that nobody here knows how to copy.
    """
    if type(value) in _UNCHANGING or isinstance(value, np.generic):
        return value
    if type(value) is np.ndarray:
        return value.copy()
    if isinstance(value, (dict, list, tuple)):
        return _each(value, own)
    if is_tensor(value):
        return value.detach().clone()
    raise TypeError


_UNCHANGING = frozenset({type(None), bool, int, float, complex, str, bytes, range})


def check_import(project: str, task: str) -> None:
    """Import a task for real, as a worker would; raises KernelError with the reason."""
    module = task.partition(":")[0]
    if find_source(project, module) is None:
        raise KernelError(f"cannot find {module!r} in {project}")
    _import_from_source(project)
    try:
        function: Any = importlib.import_module(module)
        for part in task.partition(":")[2].split("."):
            function = getattr(function, part)
    except (Exception, SystemExit) as error:
        raise KernelError(
            f"cannot import task {task!r}: {type(error).__name__}: {error}"
        ) from error
