"""Whoever gives up an operation of a desktop gives up no more than that: the desktop goes on."""

from __future__ import annotations

import asyncio

import pytest

from dart_gym.core.actions import Type, Wait
from dart_gym.core.errors import DartGymError
from dart_gym.tasks.evaluation.evaluator_environment import find
from dart_gym.tasks.evaluation.evaluator_worker import EvaluatorWorker

pytestmark = pytest.mark.desktop


async def is_well(desktop) -> bool:
    return (await desktop.execute(["echo", "well"])).stdout == b"well\n"


@pytest.mark.parametrize("moment", [0.0, 0.05])
@pytest.mark.parametrize(
    "operation",
    [
        lambda desktop: desktop.execute(["sh", "-c", "sleep 0.3; head -c 3000000 /dev/zero"]),
        lambda desktop: desktop.perform(Type("abc" * 300)),
        lambda desktop: desktop.perform(Wait(0.3)),
        lambda desktop: desktop.read_file("/home/user/large"),
        lambda desktop: desktop.screenshot(),
    ],
)
async def test_a_desktop_outlives_what_is_cancelled(start_desktop, operation, moment):
    desktop = await start_desktop()
    await desktop.write_file("/home/user/large", bytes(30 << 20))
    task = asyncio.ensure_future(operation(desktop))
    await asyncio.sleep(moment)
    task.cancel()
    await asyncio.wait({task})
    await desktop.execute(["sleep", "0.5"])  # what was given up would have ended by now
    assert await is_well(desktop) and desktop.alive


@pytest.mark.thorough
async def test_a_desktop_outlives_an_evaluation_that_is_cut_off(start_desktop, tmp_path):
    desktop = await start_desktop()
    cache = tmp_path / "cache"
    cache.mkdir()
    program = 'import os, urllib.request as u; u.urlopen(os.environ[\'URL\'], b\'{"command": ["sleep", "4"]}\')'
    async with EvaluatorWorker(desktop, find(), cache, timeout=3.0) as worker:
        await worker.start([])
        with pytest.raises(DartGymError, match="longer than 3 s"):
            await worker.run(
                "x",
                command=["/usr/bin/python3", "-c", program],
                files="",
                apart=[],
                most_bytes=1,
                sites="/",
                variables={"URL": "http://127.0.0.1:5000/execute"},
            )
    await desktop.execute(["sleep", "2"])  # the answer that nobody wants any more has come
    assert await is_well(desktop)
