"""`pytest -p postroom`: the tests have a GPU of their own, each worker of xdist another one.

The GPUs are leased before a conftest or a test is imported, so before torch is. With xdist the
controller leases one for each worker, all at once: two runs that took them one by one could wait
for each other for ever. The lease ends with the run, however it ends.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from ..errors import PostroomError
from ..functions.lease_block import lease
from ..gpus.cards import inventory
from ..gpus.cards.inventory import Card
from ..text.sizes import to_mib

if TYPE_CHECKING:
    import execnet

LEASES = pytest.StashKey[contextlib.ExitStack]()
# What only shows something needs no GPU.
ONLY_SHOWS = ("help", "version", "collectonly", "showfixtures", "show_fixtures_per_test", "markers")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("postroom", "GPUs, leased with Postroom").addoption(
        "--gpu-memory",
        metavar="SIZE",
        help="Share GPUs: reserve SIZE (as 4G) for each worker instead of a whole GPU.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Lease a GPU for this process, unless it is a worker or the controller of workers."""
    options = early_config.known_args_namespace
    workers = getattr(options, "numprocesses", None) or getattr(options, "tx", None)
    if workers or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if not any(getattr(options, name, False) for name in ONLY_SHOWS):
        _lease(early_config, 1, getattr(options, "gpu_memory", None))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Release the GPUs."""
    if LEASES in config.stash:
        config.stash[LEASES].close()


def pytest_report_header(config: pytest.Config) -> str:
    """Say which GPU the tests have."""
    if LEASES not in config.stash:
        return "postroom: no GPU was leased here"
    return f"postroom: GPU {os.environ.get('CUDA_VISIBLE_DEVICES')}"


@pytest.fixture(scope="session")
def gpu() -> Card:
    """The GPU of this process, the only one that CUDA sees; skips where there is none."""
    names = os.environ.get("POSTROOM_GPU", "")
    if not names:
        pytest.skip("needs a GPU, and this machine has none")
    return inventory.find(names.partition(",")[0])


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto`: as many workers as there are GPUs."""
    return len(inventory.cards()) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[execnet.XSpec]) -> None:
    """Lease a GPU for each worker, and tell each which one is its own."""
    here = [number for number, spec in enumerate(specs) if spec.popen]
    memory = config.getoption("gpu_memory")
    cards = _lease(config, len(here), memory)
    for place, number in enumerate(here if cards else []):
        # The text is what xdist makes each worker from, also one that takes a dead one's place.
        pinned = inventory.pin(cards[place % len(cards)])
        spec = specs[number]
        words = [f"env:{name}={value}" for name, value in pinned.items()]
        specs[number] = type(spec)("//".join([str(spec), f"id={spec.id}", *words]))


def _lease(config: pytest.Config, workers: int, memory: str | None) -> tuple[Card, ...]:
    """Lease GPUs for this many workers, all at once; nothing where there is no GPU."""
    try:
        seen = len(inventory.cards())
        if not seen or not workers:
            return ()
        if workers > seen and memory is None:
            raise pytest.UsageError(
                f"-n {workers} needs a GPU for each worker, and {seen} are visible: use -n {seen}, "
                "or share them with --gpu-memory 4G"
            )
        on_a_card = -(-workers // seen)
        share = None if memory is None else f"{on_a_card * to_mib(memory)}M"
        stack = config.stash.setdefault(LEASES, contextlib.ExitStack())
        return stack.enter_context(
            lease(count=min(workers, seen), memory=share, name=f"pytest {config.rootpath.name}")
        )
    except PostroomError as error:
        raise pytest.UsageError(f"postroom: {error}") from error
