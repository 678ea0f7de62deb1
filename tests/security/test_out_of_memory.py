"""A desktop that uses more memory than it may loses programs of its own, and whoever acts in it what it was about.

As root the kernel ends programs of the desktop's control group, elsewhere the first process of the sandbox does.
"""

from __future__ import annotations

import dataclasses

import httpx
import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer
from dart_gym.cluster.server.server_settings import ServerSettings
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.cluster.wire.local_tokens import find_local_token
from dart_gym.core.actions import Done, Move
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement import resource_limits
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox import sandbox
from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot

pytestmark = [pytest.mark.security, pytest.mark.desktop]

SIZE = {"width": 320, "height": 240}
LIMITS = {"memory_mb": 300, "storage_mb": 16}
PIXMAPS = """
from Xlib.display import Display
display = Display(":0")
kept = []
while True:
    root = display.screen().root
    kept.append(root.create_pixmap(2000, 2000, 24))
    kept[-1].fill_rectangle(kept[-1].create_gc(foreground=1), 0, 0, 2000, 2000)
    display.sync()
"""
HOG = "open('/tmp/begun', 'w')\nparts = []\nwhile True: parts.append(bytearray(b'x') * (16 << 20))\n"


def task(name: str, program: str) -> dict[str, object]:
    command = ["sh", "-c", 'sleep 2; python3 -c "$0"; touch /tmp/over', program]
    planted = {"type": "launch", "parameters": {"command": command}}
    return {"id": name, "instruction": "", "config": [planted], "evaluator": {"func": "infeasible"}}


@pytest.fixture
async def server():
    async with ClusterServer(
        ServerSettings(listen="ws://127.0.0.1:0", desktops=2, desktop_limits=LIMITS), make_desktop
    ) as server:
        yield server


async def metrics(url: str) -> str:
    headers = {"Authorization": f"Bearer {find_local_token(parse_address(url))}"}
    async with httpx.AsyncClient(base_url=url.replace("ws://", "http://"), trust_env=False) as client:
        return (await client.get("/metrics", headers=headers)).text


async def test_who_has_the_display_s_memory_used_up_has_ended_the_desktop(server):
    client = ClusterClient(server.url)
    async with client.session() as attacker, client.session() as neighbour:
        await neighbour.reset({**task("quiet", ""), "config": []}, seed=0, max_steps=10_000, desktop=SIZE)
        begun = await attacker.reset(task("hostile", PIXMAPS), seed=0, max_steps=10_000, desktop=SIZE)
        assert begun.terminal is None, begun.evaluation
        last = begun
        while last.terminal is None:
            last = await attacker.step(Move(5, 5))
            assert (await neighbour.step(Move(5, 5))).terminal is None
        assert last.terminal is TerminalState.DESKTOP_KILLED and last.reward == 0.0
        assert (last.evaluation.status, last.evaluation.score) == (EvaluationStatus.OK, 0.0)
        assert f"used more than {300 << 20} bytes of memory" in last.evaluation.detail
        assert (await neighbour.step(Done())).terminal is TerminalState.DONE
        text = await metrics(server.url)
        assert 'dart_gym_episodes_ended_total{evaluation="ok",terminal="desktop_killed"} 1.0' in text
        assert 'dart_gym_episodes_broken_share{by="desktop"} 0.5' in text
        assert 'dart_gym_episodes_broken_share{by="environment"} 0.0' in text
        assert (await attacker.reset(task("again", "pass"), seed=0, desktop=SIZE)).terminal is None
        limits = [desktop["limits"] for desktop in (await client.status())["desktops"] if desktop["alive"]]
        assert limits and all(found["memory_mb"] == 300 for found in limits)


async def test_a_program_that_is_ended_for_memory_ends_no_episode():
    session = Session(Slot("0", lambda spec: make_desktop(dataclasses.replace(spec, **LIMITS))))
    result = await session.reset(task("hog", HOG), seed=0, max_steps=10_000, desktop=SIZE)
    desktop = session.episode.desktop
    while (await desktop.execute(["test", "-e", "/tmp/over"])).returncode:
        assert (result := await session.step(Move(5, 5))).terminal is None, result.evaluation
    assert (await desktop.execute(["test", "-e", "/tmp/begun"])).returncode == 0
    last = await session.step(Done())
    assert (last.terminal, last.evaluation.status) == (TerminalState.DONE, EvaluationStatus.OK)
    await session.slot.close()


@pytest.mark.skipif(not resource_limits.group_places(), reason="without control groups the first process counts")
async def test_the_kernel_s_count_of_programs_that_it_ended_is_read(monkeypatch):
    made = []
    make = resource_limits.make_groups
    monkeypatch.setattr(sandbox, "make_groups", lambda *arguments: made.append(make(*arguments)) or made[-1])
    desktop = XvfbDesktop(DesktopSpec(**SIZE, **LIMITS))  # its keeper's part, in this process
    await desktop.start()
    try:
        assert made[0].ended_for_memory() == 0 and desktop.with_logs("x").startswith("x\n")
        await desktop.execute(["python3", "-c", HOG])
        assert made[0].ended_for_memory() == 1
        assert desktop.with_logs("x").startswith(
            f"x (it used more than {300 << 20} bytes of memory: programs ended: 1)"
        )
    finally:
        await desktop.stop()
    assert made[0].ended_for_memory() == 0 and not any(path.exists() for path in made[0].directories)
