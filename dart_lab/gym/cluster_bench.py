"""The environment cluster: the websocket's share of a step, the steps per second of a server, and the cost of waiting.

- (a) The same 1080p screen (a photograph of a real desktop, on drawn desktops, so that only the way differs) stepped
  in this process and by a server's process on a Unix socket, one step of each way in turn: with every codec, and as a
  client on the same machine gets it without being told ("shared": memory of both). `overhead_vs_copy` is what that adds
  to a step over the time that as many bytes take through a socket pair, measured in between.
- (b) 256 drawn desktops of 32x32 pixels, so that no images worth mentioning move, on one server process, driven by
  this one process without a pause. Each step points outside of the screen at a place of its own; the reply names the
  place and the number of the step, so every reply is held against its request.
- (c) Real desktops under a long-tailed workload, driven in three ways: see `dart_lab.gym.long_tail`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_gym.cluster.client.cluster_client import ClientSession, ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.shared_frames import SHARED
from dart_gym.core.actions import Move
from dart_gym.core.errors import DesktopError
from dart_gym.envs.vector_env import DesktopVectorEnv
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_lab.gym import long_tail
from dart_lab.gym.cluster_server_process import BenchServer, DesktopMaker
from dart_lab.gym.desktop_bench import own_megabytes
from dart_lab.reporting.report import Aim, Report, median, percentile

WIDTH, HEIGHT = 1920, 1080
PICTURE_TASK = "debian-basics/web-shop"
DRAWN_TASK = "fake/two-steps"
SMALL = {"width": 32, "height": 32}
ENDLESS = 1 << 40  # steps of an episode
WARMUP = 5
PLACES = 100_000  # that a pointer can name outside of a screen: more than steps between a request and a late reply
AIMS = {
    "overhead_ms_raw": Aim(8.0, at_most=True),
    "overhead_vs_copy": Aim(2.0, at_most=True),
    "fake_256_steps_per_s": Aim(2000.0, at_most=False),
    "desync_wrong": Aim(0.0, at_most=True),
    "coroutines_vs_barrier": Aim(4.0, at_most=False),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement.

    Attributes:
        overhead_steps: of each codec, in (a).
        fakes: drawn desktops of (b).
        desync_steps: of all of them together.
        desktops: real ones of (c).
        seconds: of each way to drive them.
    """

    overhead_steps: int = 60
    fakes: int = 256
    desync_steps: int = 100_000
    desktops: int = 8
    seconds: float = 60.0


async def measure(sizes: Sizes, report_progress: Callable[[str], None]) -> Report:
    """Run the benchmark."""
    report_progress("a picture of a real desktop")
    picture = await photograph()
    report_progress("steps at 1080p, in this process and over a websocket")
    keys = await overhead(picture, sizes.overhead_steps)
    report_progress(f"{sizes.desync_steps} steps of {sizes.fakes} drawn desktops")
    keys |= await many_fakes(sizes.fakes, sizes.desync_steps)
    report_progress(f"{sizes.desktops} real desktops, {sizes.seconds:g} s in each of three ways")
    keys |= await three_ways(sizes.desktops, sizes.seconds)
    notes = [
        f"overhead: {WIDTH}x{HEIGHT}, medians of {sizes.overhead_steps} steps each, server and client two processes",
        "on one machine, a Unix socket; the client turns every reply into an array again.",
        f"fake_{sizes.fakes}: {SMALL['width']}x{SMALL['height']} pixels, one server and one client process.",
        f"ways: {long_tail.TASK}, think time log-normal with median {long_tail.THINK_MEDIAN_S:g} s and",
        f"sigma {long_tail.THINK_SPREAD:g} (99th percentile 66 times the median), at most {long_tail.THINK_CAP_S:g} s.",
    ]
    return Report("cluster", keys, AIMS, notes)


async def photograph() -> NDArray[np.uint8]:
    """The screen of a real desktop with a program on it.

    Raises:
        DesktopError: it did not start.
    """
    async with Session() as session:
        result = await session.reset(PICTURE_TASK, seed=0, desktop={"width": WIDTH, "height": HEIGHT})
        if result.terminal is not None:
            raise DesktopError(f"the benchmark's desktop failed: {result.observation.action_error}")
        return result.observation.screenshot


# --- (a)


async def overhead(picture: NDArray[np.uint8], steps: int) -> dict[str, float]:
    """Return what a server adds to a step, by codec, in milliseconds, and over a copy through a socket pair."""
    size = {"height": picture.shape[0], "width": picture.shape[1]}
    slot = Slot("bench", DesktopMaker(picture))
    copies: list[float] = []
    async with BenchServer(len(frames.CODECS) + 1, picture) as server, Session(slot) as local:
        ways: dict[str, Session | ClientSession] = {"": local, SHARED: ClusterClient(server.url).session()}
        for codec in frames.CODECS:
            ways[codec] = ClusterClient(server.url, settings=ClientSettings(codecs=(codec,))).session()
        for session in ways.values():
            await session.reset(DRAWN_TASK, seed=0, max_steps=ENDLESS, desktop=size)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(WARMUP + steps):
            for name, session in ways.items():
                action = Move(100 + 37 * number % 1200, 100 + 23 * number % 700)
                started = time.perf_counter()
                await session.step(action)
                seconds[name].append(time.perf_counter() - started)
            copies.append(await asyncio.to_thread(socket_copy, picture))
        for session in ways.values():
            await session.close()
    await slot.close()
    middle = {name: 1e3 * median(values[WARMUP:]) for name, values in seconds.items()}
    keys = {"step_ms_in_process": middle[""]}
    for codec in (SHARED, *frames.CODECS):
        keys[f"overhead_ms_{codec}"] = middle[codec] - middle[""]
        keys[f"step_vs_in_process_{codec}"] = middle[codec] / middle[""]
    keys["copy_ms"] = 1e3 * median(copies[WARMUP:])
    keys["overhead_vs_copy"] = keys[f"overhead_ms_{SHARED}"] / keys["copy_ms"]
    keys["raw_overhead_vs_copy"] = keys["overhead_ms_raw"] / keys["copy_ms"]
    return keys


def socket_copy(picture: NDArray[np.uint8]) -> float:
    """Seconds that a picture's bytes take through a socket pair, from memory into memory that is there already."""
    taken = memoryview(bytearray(picture.nbytes))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=ours.sendall, args=(picture.data.cast("B"),))
        started = time.perf_counter()
        sender.start()
        received = 0
        while received < len(taken):
            received += theirs.recv_into(taken[received:])
        passed = time.perf_counter() - started
        sender.join()
    return passed


# --- (b)


class Desync:
    """Steps of one drawn desktop, each held against its request."""

    def __init__(self, session: ClientSession, number: int) -> None:
        self._session, self._number = session, number
        self.wrong = 0

    async def start(self) -> None:
        """Start an episode without an end."""
        result = await self._session.reset(DRAWN_TASK, seed=self._number, max_steps=ENDLESS, desktop=dict(SMALL))
        if result.terminal is not None:
            raise DesktopError(f"the benchmark's reset failed: {result.observation.action_error}")

    async def run(self, steps: int, latencies: array[float]) -> None:
        """Step; every reply must belong to its request."""
        for step in range(1, steps + 1):
            place = (1000 + self._number, step % PLACES)
            started = time.perf_counter()
            result = await self._session.step(Move(*place))
            latencies.append(time.perf_counter() - started)
            if result.step_index != step or not result.observation.action_error.startswith(f"{place} "):
                self.wrong += 1


async def many_fakes(count: int, steps: int) -> dict[str, float]:
    """Steps per second, latencies, the server's memory, both sides' processor time per step; and wrong replies."""
    each = max(1, steps // count)
    async with BenchServer(count) as server:
        client = ClusterClient(server.url)
        sessions = [client.session() for _ in range(count)]
        drivers = [Desync(session, number) for number, session in enumerate(sessions)]
        await asyncio.gather(*(driver.start() for driver in drivers))
        latencies = array("d")
        started = time.perf_counter()
        own_cpu = time.process_time()
        server_cpu = cpu_seconds(server.pid)
        await asyncio.gather(*(driver.run(each, latencies) for driver in drivers))
        passed = time.perf_counter() - started
        own_cpu, server_cpu = time.process_time() - own_cpu, cpu_seconds(server.pid) - server_cpu
        memory = own_megabytes(server.pid)
        await asyncio.gather(*(session.close() for session in sessions))
    name = f"fake_{count}"
    return {
        f"{name}_steps_per_s": len(latencies) / passed,
        f"{name}_p50_ms": 1e3 * median(latencies),
        f"{name}_p99_ms": 1e3 * percentile(latencies, 0.99),
        f"{name}_memory_mb": memory,
        f"{name}_server_cpu_us": 1e6 * server_cpu / len(latencies),
        f"{name}_client_cpu_us": 1e6 * own_cpu / len(latencies),
        "desync_steps": float(len(latencies)),
        "desync_wrong": float(sum(driver.wrong for driver in drivers)),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- (c)


async def three_ways(desktops: int, seconds: float) -> dict[str, float]:
    """Episodes per minute of real desktops, driven in three ways on one server."""
    async with BenchServer(desktops) as server:
        envs = DesktopVectorEnv(desktops, long_tail.TASK, url=server.url, max_steps=long_tail.MAX_STEPS)
        try:
            await asyncio.to_thread(envs.reset, seed=0)  # boots all desktops, which are kept
            barrier = await asyncio.to_thread(long_tail.with_barrier, envs, seconds)
            send_recv = await asyncio.to_thread(long_tail.with_send_recv, envs, seconds)
        finally:
            await asyncio.to_thread(envs.close)
        coroutines = await long_tail.with_coroutines(ClusterClient(server.url), desktops, seconds)
    return {
        "barrier_episodes_per_min": barrier,
        "send_recv_episodes_per_min": send_recv,
        "coroutines_episodes_per_min": coroutines,
        "send_recv_vs_barrier": send_recv / barrier,
        "coroutines_vs_barrier": coroutines / barrier,
    }
