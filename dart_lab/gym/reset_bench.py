"""Resets of a server with and without spare desktops, on desktops that are not kept over episodes.

One session after the other: a reset, an episode of some seconds without much work, the next reset. With a spare the
reset takes the one that booted during the episode. The numbers are what the client sees, the socket included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.actions import Wait
from dart_gym.core.errors import DesktopError
from dart_lab.reporting.report import Report, percentile

RESETS = 16
EPISODE_S = 2.0
SIZE = {"width": 1920, "height": 1080}


def task(profile: str) -> dict[str, Any]:
    """A task without set-up, so that a reset is that of the desktop."""
    extra = {"desktop": {"profile": profile, **SIZE}}
    return {"id": f"bench-{profile}", "instruction": "", "evaluator": {"func": "infeasible"}, "dart": extra}


async def measure(report_progress: Callable[[str], None]) -> Report:
    """Run the benchmark; takes about three minutes."""
    keys: dict[str, float] = {}
    for profile in ("osworld", "browser"):
        for name, warm in (("cold", 0), ("spare", 1)):
            report_progress(f"{profile}, {'a spare desktop' if warm else 'no spare desktop'}")
            seconds = await _resets(profile, warm)
            keys[f"reset_{profile}_{name}_p50_s"] = percentile(seconds, 0.5)
            keys[f"reset_{profile}_{name}_p95_s"] = percentile(seconds, 0.95)
        keys[f"{profile}_spare_vs_cold"] = keys[f"reset_{profile}_cold_p50_s"] / keys[f"reset_{profile}_spare_p50_s"]
    note = f"{RESETS} resets each, after episodes of {EPISODE_S:g} s, {SIZE['width']}x{SIZE['height']}, one session"
    return Report("reset", keys, notes=[note])


async def _resets(profile: str, warm: int) -> list[float]:
    """Seconds of each reset except the first, which cannot be prepared."""
    seconds = []
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as directory:
        url = f"ws+unix://{Path(directory) / 's'}"
        async with (
            ClusterServer(ServerSettings(listen=url, desktops=1, warm=warm)),
            ClusterClient(url).session() as session,
        ):
            for number in range(RESETS + 1):
                started = time.perf_counter()
                result = await session.reset(task(profile), seed=number)
                seconds.append(time.perf_counter() - started)
                if result.terminal is not None:
                    raise DesktopError(f"the benchmark's reset failed: {result.observation.action_error}")
                await session.step(Wait(EPISODE_S))
    return seconds[1:]
