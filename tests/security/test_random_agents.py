"""An hour of random programs on four desktops, beside a tenant whose episodes all end right. `make test-slow`."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path

import pytest

from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.core.actions import Move, Wait
from dart_gym.core.errors import ClusterError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.confinement.resource_limits import group_places

MINUTES = float(os.environ.get("DART_FUZZ_MINUTES", "60"))
"""How long it takes."""

pytestmark = [pytest.mark.security, pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(MINUTES * 60 + 600)]

SIZE = {"width": 320, "height": 240}
TENANT = {"id": "tenant", "instruction": "", "evaluator": {"func": "infeasible"}}
PROGRAM = Path(__file__).with_name("random_program.py").read_text()
HOSTILE_DESKTOPS = 4
LONGEST_EPISODE_S = 60.0
MOST_MEMORY = 600 << 20  # of the server; it begins with less than a tenth


def hostile(seed: int) -> dict[str, object]:
    command = ["python3", "-c", PROGRAM, str(seed)]
    step = {"type": "launch", "parameters": {"command": command}}
    return {"id": f"hostile-{seed}", "instruction": "", "config": [step], "evaluator": {"func": "infeasible"}}


async def be_hostile(cluster: LocalCluster, seeds: itertools.count[int], deadline: float) -> int:
    """Play hostile episodes until the time is over; how many."""
    episodes = 0
    while time.monotonic() < deadline:
        async with cluster.client().session() as session:
            try:
                result = await session.reset(hostile(next(seeds)), seed=0, max_steps=40, desktop=SIZE)
                while result.terminal is None and time.monotonic() < deadline:
                    result = await session.step(Wait(0.5))
            except ClusterError as error:
                assert error.code != "internal", error
        episodes += 1
    return episodes


async def play(cluster: LocalCluster, deadline: float) -> int:
    """Play episodes that must all end right; how many."""
    episodes = 0
    while time.monotonic() < deadline:
        started = time.monotonic()
        async with cluster.client().session() as session:
            result = await session.reset(TENANT, seed=episodes, max_steps=100, desktop=SIZE)
            assert result.terminal is None, result
            for step in range(10):
                result = await session.step(Move(10 + step * 20, 20 + step))
                assert result.terminal is None and result.step_index == step + 1, result
            result = await session.finish(TerminalState.FAIL)
            assert result.evaluation.status is EvaluationStatus.OK and result.evaluation.score == 1.0, result
        assert time.monotonic() - started < LONGEST_EPISODE_S
        episodes += 1
    return episodes


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def programs() -> list[str]:
    """Processes of this machine that came from a hostile desktop."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"What an agent may do with a terminal" in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # it has ended
    return found


async def test_random_programs_harm_nobody_else_and_leave_nothing():
    deadline = time.monotonic() + MINUTES * 60
    seeds = itertools.count(1)
    groups = [place for place, _ in group_places()]
    async with LocalCluster(HOSTILE_DESKTOPS + 1) as cluster:
        pid = cluster.pid
        async with asyncio.TaskGroup() as tasks:
            tenant = tasks.create_task(play(cluster, deadline))
            agents = [tasks.create_task(be_hostile(cluster, seeds, deadline)) for _ in range(HOSTILE_DESKTOPS)]
        assert cluster.pid == pid, "it is the server that it was"
        assert resident_bytes(pid) < MOST_MEMORY
        runtime = Path(cluster.url.removeprefix("ws+unix://")).parent.parent
        print(f"{tenant.result()} episodes beside {sum(agent.result() for agent in agents)} hostile ones")
    assert tenant.result() >= MINUTES
    assert programs() == []
    assert [path for path in runtime.iterdir() if path.name.startswith(f"{pid}-")] == []
    assert [path for place in groups for path in place.glob(f"dart-gym.*.{pid}-*")] == []
