"""Two tenants on one server: while one attacks it, the other plays on, without one wrong reply and at nearly its speed.

Each attack lasts `DART_ATTACK_S` seconds (3; 60 for the whole proof, in which the other plays 100 episodes at least).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time

import pytest

from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.core.actions import Click, Done, Move
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from tests.helpers.parameters import slow_but

ATTACK_S = float(os.environ.get("DART_ATTACK_S", "3"))
pytestmark = [pytest.mark.security, pytest.mark.desktop, pytest.mark.timeout(300 + 15 * ATTACK_S)]
ALONE_S = min(10.0, ATTACK_S / 3)
EPISODES = max(5, round(100 * ATTACK_S / 60))
ALONE_EPISODES = 3
"""At least so many before, and so many after: an episode takes a second, most of it to start its desktop."""

LEAST_SPEED = 0.7
MOST_ROUNDS = 3 if ATTACK_S < 60 else 1
"""Seconds say little where others use the machine too: an attack that slows a neighbour down does so every time."""
SIZE = {"width": 320, "height": 240}
QUIET = {"id": "quiet", "instruction": "Say that it cannot be done", "evaluator": {"func": "infeasible"}}

PROGRAMS = {
    "forks": "bomb() { bomb | bomb & }; bomb",
    "spins": "for i in $(seq 64); do while :; do :; done & done; wait",
    "fills memory": "exec python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 24))'",
    "fills disks": "for d in /tmp /dev/shm ~ /run/user/1000; do cat /dev/zero > $d/full & done; wait",
    "kills all": "kill -9 -1",
    "stops the display": "pkill -STOP Xvfb; sleep 1000",
    "cuts the framebuffer": "truncate -s 0 /run/desktop/Xvfb_screen0",
    "floods the logs": "yes | head -c 100G > /run/desktop/log/xvfb.log",
    "draws for ever": "while :; do xsetroot -solid red; xsetroot -solid blue; done",
    "makes deep directories": "cd /tmp; while mkdir d; do cd d; done; sleep 1000",
}


def hostile(command):
    script = f"sleep 0.5; {command}"
    planted = {"type": "launch", "parameters": {"command": ["bash", "-c", script]}}
    return {**QUIET, "id": "hostile", "config": [planted]}


async def attack_by_program(cluster, command):
    """Attack from a desktop, and from the next one where that has ended."""
    async with cluster.client().session() as session:
        while True:
            with contextlib.suppress(DartGymError):
                result = await session.reset(hostile(command), seed=0, max_steps=10_000, desktop=SIZE)
                while result.terminal is None:
                    result = await session.step(Click(20, 20))


async def attack_by_names(cluster):
    """Ask for tasks of endless names."""
    async with cluster.client().session() as session:
        while True:
            with pytest.raises(DartGymError):
                await session.reset("x" * 4_000_000, seed=0)


async def attack_by_handshakes(cluster):
    """Connect, say half of a line, and wait."""
    writers = []
    try:
        while True:
            _, writer = await asyncio.open_unix_connection(parse_address(cluster.url).path)
            writer.write(b"GET / HTT")
            writers.append(writer)
            await asyncio.sleep(0.01 if len(writers) < 400 else 1.0)
    finally:
        for writer in writers:
            writer.close()


async def play_one(session, seed):
    """An episode that can only go right; how long it took, in seconds."""
    started = time.perf_counter()
    result = await session.reset(QUIET, seed=seed, max_steps=20, desktop=SIZE)
    assert result.terminal is None, result.observation.action_error
    assert result.info["seed"] == seed and result.observation.instruction == QUIET["instruction"]
    for number in range(1, 5):
        result = await session.step(Move(10 + seed % 200, 10 * number))
        assert (result.terminal, result.step_index, result.observation.action_error) == (None, number, "")
        assert result.observation.screenshot.shape == (240, 320, 3) and result.observation.screenshot.any()
    result = await session.step(Done())
    assert (result.terminal, result.step_index) == (TerminalState.DONE, 5)
    assert (result.evaluation.status, result.evaluation.score) == (EvaluationStatus.OK, 0.0)
    return time.perf_counter() - started


async def play(session, seeds, seconds, least):
    """Play for some seconds, and at least so many episodes; the seconds that each took."""
    taken, until = [], time.monotonic() + seconds
    while time.monotonic() < until or len(taken) < least:
        taken.append(await play_one(session, next(seeds)))
    return taken


async def speed_beside(cluster, session, seeds, attack):
    """The speed beside an attack, by that before and after it; every reply is right."""
    before = await play(session, seeds, ALONE_S, ALONE_EPISODES)
    if attack in PROGRAMS:
        attacking = asyncio.create_task(attack_by_program(cluster, PROGRAMS[attack]))
    else:
        attacking = asyncio.create_task((attack_by_names if "names" in attack else attack_by_handshakes)(cluster))
    try:
        during = await play(session, seeds, ATTACK_S, EPISODES)
        assert not attacking.done(), attacking.exception()
    finally:
        attacking.cancel()
        await asyncio.wait({attacking})
    after = await play(session, seeds, ALONE_S, ALONE_EPISODES)
    speed = statistics.median([*before, *after]) / statistics.median(during)
    print(f"{attack}: {len(during)} episodes at {100 * speed:.0f} % of the speed alone", flush=True)
    return speed


@pytest.mark.parametrize(
    "attack",
    slow_but(
        ["forks", "fills memory", "fills disks", "kills all", "stops the display", "handshakes without an end"],
        [*PROGRAMS, "endless names", "handshakes without an end"],
    ),
)
async def test_while_one_tenant_attacks_the_other_plays_on(cluster, attack):
    seeds = iter(range(1_000_000))
    async with cluster.client().session() as session:
        await play_one(session, next(seeds))  # warm
        speeds = []
        while len(speeds) < MOST_ROUNDS and max(speeds, default=0.0) < LEAST_SPEED:
            speeds.append(await speed_beside(cluster, session, seeds, attack))
    assert max(speeds) >= LEAST_SPEED, speeds
