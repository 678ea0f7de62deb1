"""A soak: real desktops, random actions and random kills for a long time; nothing leaks and no reply is wrong.

`DART_GYM_SOAK_S` sets its length, half an hour by default. What it measured is printed (`pytest -s`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from serving import Line, Place, ServeProcess, small_desktop
from waiting import wait_for

from dart_gym.cluster.client.cluster_client import ClientSession, ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.core.actions import Action, Click, Drag, Move, Press, Scroll, Type
from dart_gym.core.outcomes import TerminalState

SECONDS = float(os.environ.get("DART_GYM_SOAK_S", "1800"))
DESKTOPS = 8
WIDTH, HEIGHT = 320, 240
ESSENTIAL = ("Xvfb", "desktop-guest", "openbox", "bwrap")
pytestmark = [pytest.mark.slow, pytest.mark.desktop, pytest.mark.timeout(SECONDS + 300)]

CLIENT = """
import asyncio, json, sys
from dart_gym.core.actions import Move
from dart_gym.cluster.client.cluster_client import ClusterClient

async def main():
    async with ClusterClient(sys.argv[1]).session() as session:
        while True:
            result = await session.reset(json.loads(sys.argv[2]), seed=0)
            while result.terminal is None:
                print(result.step_index, flush=True)
                result = await session.step(Move(10, 10))

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a server and its desktops take while nobody uses them."""

    descriptors: Counter[str]
    memory_kb: int
    processes: int
    directories: int
    displays: int


@dataclass(slots=True)
class Figures:
    """What happened."""

    seconds: float = 0.0
    steps: int = 0
    episodes: int = 0
    wrong_replies: list[str] = field(default_factory=list)
    faults: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    before: Footprint | None = None
    after: Footprint | None = None


def descriptors(pid: int) -> Counter[str]:
    """What a process has open, by kind: a file's path, a socket's (its own or, for an accepted one, the listener's)."""
    sockets = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _number, _references, _protocol, flags, _type, _state, inode, *path = line.split()
        listening = "listening " if int(flags, 16) & 0x10000 else ""
        sockets[f"socket:[{inode}]"] = f"{listening}unix socket {Path(path[0]).name if path else ''}".strip()
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(entry)
            found[sockets.get(target, target.split(":[")[0])] += 1
    return found


def random_action(rng: random.Random) -> Action:
    x, y = rng.randrange(WIDTH), rng.randrange(HEIGHT)
    choices: list[Action] = [
        Move(x, y),
        Click(x, y, rng.choice(["left", "right"])),
        Drag(((x, y), (rng.randrange(WIDTH), rng.randrange(HEIGHT)))),
        Scroll(x, y, dy=rng.choice([-2, 2])),
        Type(rng.choice(["hello", "a b c", "äöü€"])),
        Press((rng.choice(["enter", "escape", "tab", "a"]),)),
    ]
    return rng.choice(choices)


class Soak:
    """Players, killers, and what they saw."""

    def __init__(self, place: Place, server: ServeProcess, seed: int) -> None:
        self.place, self.server = place, server
        self.figures = Figures()
        self._rng = random.Random(seed)
        self._lines: list[Line] = []
        self._ending = False

    async def run(self, seconds: float) -> Figures:
        """Warm up, note what an idle server takes, go on, and note it again."""
        started = time.monotonic()
        await self._play(seconds / 5)
        self.figures.before = await self._footprint()
        await self._play(seconds * 4 / 5)
        self.figures.after = await self._footprint()
        self.figures.seconds = time.monotonic() - started
        return self.figures

    async def _play(self, seconds: float) -> None:
        self._ending = False
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            self._lines = [
                await stack.enter_async_context(Line(self.place.path / "serve.sock", self.place.path / f"line-{i}"))
                for i in range(DESKTOPS - 1)
            ]
            players = [group.create_task(self._player(i, line)) for i, line in enumerate(self._lines)]
            killers = [
                group.create_task(task) for task in (self._kill_desktops(), self._cut_lines(), self._kill_clients())
            ]
            await asyncio.wait([*players, *killers], timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            self._ending = True

    async def _pause(self, seconds: float) -> bool:
        """Wait a random time; whether to go on."""
        deadline = time.monotonic() + self._rng.uniform(0.2, 1.8) * seconds
        while not self._ending and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        return not self._ending

    # --- who plays

    async def _player(self, number: int, line: Line) -> None:
        client = ClusterClient(line.url, settings=ClientSettings(reconnect_s=30.0))
        rng = random.Random(number)
        episode = 0
        while not self._ending:
            async with client.session() as session:
                for _ in range(rng.randrange(1, 6)):
                    episode += 1
                    await self._episode(session, f"player-{number}-episode-{episode}", rng)
                    if self._ending:
                        break

    async def _episode(self, session: ClientSession, name: str, rng: random.Random) -> None:
        seed = rng.randrange(1 << 30)
        result = await session.reset(small_desktop(name), seed=seed)
        self.figures.episodes += 1
        for expected in range(rng.randrange(1, 40)):
            if result.terminal is TerminalState.ENV_ERROR:
                self.figures.faults += 1
                return
            got = (result.info["task_id"], result.info["seed"], result.step_index)
            if got != (f"osworld/{name}", seed, expected) or result.observation.screenshot.shape != (HEIGHT, WIDTH, 3):
                self.figures.wrong_replies.append(f"{got} instead of {(name, seed, expected)}")
            if self._ending:
                return
            result = await session.step(random_action(rng))
            self.figures.steps += 1

    # --- who kills

    async def _kill_desktops(self) -> None:
        while await self._pause(3.0):
            name = self._rng.choice(ESSENTIAL)
            if pids := self.server.named(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._rng.choice(pids), signal.SIGKILL)
                    self.figures.kills[name] += 1

    async def _cut_lines(self) -> None:
        while await self._pause(1.0):
            self._rng.choice(self._lines).cut()
            self.figures.kills["connection"] += 1

    async def _kill_clients(self) -> None:
        while not self._ending:
            arguments = (self.server.url, json.dumps(small_desktop("killed-client")))
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, *arguments, stdout=asyncio.subprocess.PIPE
            )
            assert client.stdout is not None
            drain = asyncio.create_task(client.stdout.read())
            await self._pause(4.0)
            client.kill()
            await client.wait()
            await drain
            self.figures.kills["client"] += 1

    # --- what is left

    async def _footprint(self) -> Footprint:
        """Of the server once all sessions have ended and only its spare desktop runs."""
        status = self.server.client().status

        async def is_idle() -> bool:
            found: dict[str, Any] = await status()
            idle = all(desktop["phase"] == "idle" and not desktop["alive"] for desktop in found["desktops"])
            ready = len(found["warm"]) == 1 and found["warm"][0]["ready"]
            return idle and ready and found["sessions"] == 1 and len(self.place.desktops()) == 1

        await wait_for(is_idle, timeout=60.0)
        pid = self.server.pid
        memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
        return Footprint(
            descriptors=descriptors(pid),
            memory_kb=memory,
            processes=len(self.server.processes()),
            directories=len(self.place.desktops()),
            displays=len(self.server.named("Xvfb")),
        )


async def test_nothing_leaks_and_no_reply_is_wrong():
    place = Place()
    try:
        options = ("--desktops", str(DESKTOPS), "--warm", "1", "--grace", "3", "--heartbeat", "3")
        async with ServeProcess(place, *options) as server:
            figures = await Soak(place, server, seed=1).run(SECONDS)
            print(figures)
            log = server.log()
        assert place.desktops() == []  # after its end nothing is left at all
    finally:
        place.remove()
    before, after = figures.before, figures.after
    assert before is not None and after is not None
    assert not figures.wrong_replies, figures.wrong_replies[:5]
    assert figures.steps > SECONDS and {"connection", "client", "Xvfb"} <= set(figures.kills)
    assert (after.processes, after.directories, after.displays) == (
        before.processes,
        before.directories,
        before.displays,
    )
    more = after.descriptors - before.descriptors
    assert more.total() <= 2, f"opened and not closed: {dict(more)}; in all {dict(after.descriptors)}"
    assert after.memory_kb <= 1.1 * before.memory_kb
    assert "Traceback" not in log, log[-4000:]
