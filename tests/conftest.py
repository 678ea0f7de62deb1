"""Fixtures for all tests: a quiet environment, one private cluster for many tests, real desktops."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402  the environment comes first
from hypothesis import settings  # noqa: E402

from tests.helpers.packages import put_on_path  # noqa: E402
from tests.selecting import ruled_out  # noqa: E402

# Tested with all else.
put_on_path("dataset_export", "grounding_data", "hosted_models", "more_formats", "task_generator", "task_sources")

settings.register_profile("dart", deadline=None, max_examples=50)  # a busy machine is no failure
settings.register_profile("unit", settings.get_profile("dart"), max_examples=20)  # `make test-unit`
settings.load_profile("dart")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runs", help="where the quick start's tests keep their runs; finished ones are not repeated")
    parser.addoption("--one-parameter", action="store_true", help="each test with the first of its parameters alone")


@pytest.hookimpl(trylast=True)  # of those that the markers leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--one-parameter"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        kept = [item for item in items if first[item.nodeid.partition("[")[0]] is item]
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what the tests' modules hold, a million objects, out of every collection of garbage.

    Each would look at them for more than a second, and a trainer asks for several a run: accelerate does so wherever it
    releases memory. Little of what is made while tests are collected is garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files alone of which no test would be chosen: importing torch and its friends takes seconds a worker."""
    if not re.fullmatch(r"test_\w+\.py", collection_path.name):
        return None
    return ruled_out(collection_path.read_text(), config.getoption("markexpr")) or None


@pytest.fixture(scope="module")
def one_private_cluster():
    """Keeps the private cluster up between tests, which would each start one otherwise."""
    from dart_gym.envs.cluster_link import acquire_shared, background_loop, release_shared

    background_loop().run(acquire_shared)
    yield
    background_loop().run(release_shared)


@pytest.fixture
async def start_desktop():
    """Starts a desktop from the fields of its spec; small unless told otherwise, and stopped at the end."""
    from dart_gym.desktops.base.desktop import DesktopSpec
    from dart_gym.desktops.factory import make_desktop

    started = []

    async def start(**fields):
        desktop = make_desktop(DesktopSpec(**{"width": 320, "height": 240, **fields}))
        started.append(desktop)
        await desktop.start()
        return desktop

    yield start
    for desktop in started:
        await desktop.stop()
