"""`make demo`: two models play the same seeds beside one another, each under its own name."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections import Counter
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from dart_train.config.run_config import load_config
from dart_train.core.demo_models import demo_model
from tests.helpers.scripts import load_script

pytestmark = [pytest.mark.train, pytest.mark.desktop]
ROOT = Path(__file__).parents[1]
script = load_script("demo")


def test_the_table_counts_successes_and_leaves_out_what_was_not_played() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    tally = Counter({("after RL", "a/b", True): 3, ("after RL", "a/b", False): 1, ("before RL", "a/b", False): 2})
    console.print(script.table_of(tally, ["a/b", "c/d"]))
    rows = [line.split() for line in console.export_text().splitlines()]
    assert rows[1:] == [["a/b", "0", "of", "2", "3", "of", "4"], ["c/d"], ["all", "0", "of", "2", "3", "of", "4"]]


@pytest.mark.thorough
async def test_both_play_the_same_tasks_and_one_page_names_them() -> None:
    config = load_config(ROOT / "configs" / "multiturn.yaml")
    assert set(config.train_tasks) > {"miniwob/login-user", "miniwob/enter-password"}
    tasks = ["rollout.tasks=[miniwob/login-user, miniwob/enter-password]"]
    config, console = load_config(ROOT / "configs" / "multiturn.yaml", tasks), Console(file=io.StringIO(), width=200)
    models = {name: demo_model("tiny-copier") for name in (script.BEFORE, script.AFTER)}
    playing = asyncio.create_task(script.compete(config, models, 1, console, False))
    seen: set[str] = set()
    while not playing.done():
        if found := re.search(r"live: (http\S+)", console.file.getvalue()):
            with contextlib.suppress(httpx.TransportError):  # the page ends with the last episode
                seen |= await names_on(found[1])
        await asyncio.sleep(0.1)
    tally = await playing
    assert sum(tally.values()) == 4 and {name for name, _, _ in tally} == seen == {script.BEFORE, script.AFTER}


async def names_on(url: str) -> set[str]:
    """Names of who holds a desktop, as the page is told."""
    page, _, key = url.partition("#token=")
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
        state = await client.get(httpx.URL(page).join("watch/state"))
    return {one["client"] for one in state.json()["desktops"] if one["client"]} if state.is_success else set()
