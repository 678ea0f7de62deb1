"""Episodes on mock sites beside the same pages as local files, on many desktops at once, and how long a reset takes.

In each round every desktop plays one episode of each way, the ways in turn, so that both see the same machine. An
episode includes everything: a fresh desktop, its browser, the oracle's actions, the score. Pages as files keep their
state to themselves, so that those episodes are not scored.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from dart_gym.core.errors import DesktopError
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.keeper.kept_desktop import KeptDesktop
from dart_gym.sessions.session import Session
from dart_gym.sites import site_server
from dart_gym.sites.site_catalog import find_site
from dart_gym.sites.site_state import merged
from dart_gym.tasks.catalog.registry import get_task, task_from_dict
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.osworld.osworld_scenario import instantiate
from dart_gym.tasks.setup.site_steps import seeded
from dart_lab.reporting.report import Aim, Report, percentile

TASKS = ("sites/mail-archive", "sites/shop-cart", "sites/board-move")
RESETS = 200
_DEADLINE_S = 300.0


async def measure(desktops: int, rounds: int, report_progress: Callable[[str], None]) -> Report:
    """Run the benchmark."""
    report_progress(f"{RESETS} resets of a site on a running desktop")
    keys = await _resets()
    seconds: dict[str, list[float]] = {"sites": [], "files": []}
    for number in range(rounds):
        for way in ("sites", "files") if number % 2 else ("files", "sites"):
            report_progress(f"round {number + 1} of {rounds}: {desktops} desktops, {way}")
            started = time.perf_counter()
            tasks = islice(cycle(TASKS), desktops)
            await asyncio.gather(*(_episode(get_task(task), 10_000 + number, way) for task in tasks))
            seconds[way].append(time.perf_counter() - started)
    for way, taken in seconds.items():
        keys[f"{way}_episodes_per_minute"] = 60.0 * desktops * rounds / sum(taken)
    keys["sites_vs_files"] = keys["sites_episodes_per_minute"] / keys["files_episodes_per_minute"]
    aims = {"sites_vs_files": Aim(0.9, at_most=False)}
    return Report("sites", keys, aims, [f"{desktops} desktops at once, {rounds} rounds, {', '.join(TASKS)}, 1280x720"])


async def _resets() -> dict[str, float]:
    """Milliseconds of a site's reset as the server sees it, the way to the keeper included."""
    desktop = KeptDesktop(DesktopSpec(width=320, height=240, sites=("mail",)))
    await desktop.start()
    try:
        taken = []
        for seed in range(RESETS):
            started = time.perf_counter()
            await desktop.set_site("mail", seeded(find_site("mail").template, "mail", seed))
            taken.append(1e3 * (time.perf_counter() - started))
    finally:
        await desktop.stop()
    return {"site_reset_p50_ms": percentile(taken, 0.5), "site_reset_p95_ms": percentile(taken, 0.95)}


async def _episode(task: Task, seed: int, way: str) -> None:
    played = task if way == "sites" else as_files(task, seed)
    async with Session() as session:
        result = await session.reset(played, seed=seed, deadline_s=_DEADLINE_S)
        while result.terminal is None:
            result = await session.step(await session.oracle(deadline_s=_DEADLINE_S), deadline_s=_DEADLINE_S)
        score = result.evaluation.score if result.evaluation else None
        if result.terminal is not TerminalState.DONE or (way == "sites" and score != 1.0):
            raise DesktopError(f"an episode of {task.id} ended with {result.terminal}, {result.evaluation}")


def as_files(task: Task, seed: int) -> Task:
    """The same task, seed drawn, with the pages of its one site as files of the desktop. Pure but for reading them."""
    instance = instantiate(task, seed)
    (name,) = task.desktop.sites
    steps: list[dict[str, Any]] = []
    for step in instance["config"]:
        if step["type"] != "site":
            text = json.dumps(step).replace(f"http://{name}.test/", "file:///tmp/site/index.html")
            steps.append(json.loads(text))
            continue
        given = step["parameters"]
        state = merged(seeded(find_site(name).template, name, int(given["seed"])), given.get("state") or {})
        for folder in (find_site(name).folder, site_server.COMMON):
            for file in folder.iterdir():
                text = file.read_text(encoding="utf-8").replace('="/site.', '="site.')
                if file.name == "index.html":
                    text = text.replace(
                        "<script", f"<script>window.SITE_STATE = {json.dumps(state)}</script>\n<script", 1
                    )
                steps.append({"type": "write_file", "parameters": {"path": f"/tmp/site/{file.name}", "text": text}})
    extra = {**task.raw["dart"], "ready": instance["ready"], "oracle": instance["oracle"], "parameters": {}}
    extra["desktop"] = {key: value for key, value in extra["desktop"].items() if key != "sites"}
    return task_from_dict(
        {"id": f"{name}-files", "instruction": "", "config": steps, "evaluator": {"func": "infeasible"}, "dart": extra}
    )
