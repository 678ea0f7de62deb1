"""Forks on the page of recorded episodes: the source and its continuations as a tree, linked both ways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.viewer.episode_tree import MOST_BRANCHES, tree_of
from dart_agent.viewer.recorded_episodes import RecordedEpisodes
from dart_gym.cluster.server.page_server import PageServer
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.applications.devtools import DevTools
from tests.dart_agent.viewer.recorded_runs import screen, steps_of, write_episode
from tests.dart_gym.cluster.headless_browser import headless_page, wait_for

POSITION = "document.querySelector('#replay .position').textContent"
ROWS = "[...document.querySelectorAll('#replay .tree li button')]"
CURRENT = f"{ROWS}.findIndex(one => one.getAttribute('aria-current') === 'true')"
TASK = "office/form"


def episode(name: str, parent: str = "", step: int = 0, **fields: object) -> Trajectory:
    source = "fork" if parent else "rollout"
    return Trajectory(TASK, 7, trajectory_id=name, forked_from=parent, fork_step=step, source=source, **fields)


def write_forked(root: Path) -> None:
    """A rollout of six steps that failed, five forks of it, one of these forked again, and another rollout."""
    images = [screen(root, shade) for shade in (0, 40, 80)]

    def write(name: str, parent: str = "", step: int = 0, steps: int = 6, score: float | None = 0.0, **fields) -> None:
        made = episode(name, parent, step, terminal=TerminalState.DONE, score=score, steps=steps_of(images, steps))
        write_episode(root, replace(made, instruction="Fill in the form.", num_actions=step + steps, **fields))

    write("source")
    write("first-0", "source", 2, 4, 1.0)
    write("first-1", "source", 2, 4, 0.5)
    write("first-2", "source", 2, 3, 0.0)
    write("again-0", "first-1", 4, 2, 1.0)
    gone = {"terminal": TerminalState.INTERRUPTED, "lost_by": "fork", "detail": "the screen at step 4 differs"}
    images_of = replace(episode("second-0", "source", 4), **gone)
    write_episode(root, images_of)
    write("second-1", "source", 4, 2, 1.0)
    write("flat", score=1.0)


@pytest.fixture
async def page(tmp_path) -> AsyncIterator[DevTools]:
    write_forked(tmp_path / "run" / "data")
    records = RecordedEpisodes([tmp_path / "run"])
    async with headless_page(tmp_path / "profile") as page, PageServer(records.views, records.routes) as server:
        await page.call("Page.enable")
        await page.navigate(server.url)
        await wait_for(page, "document.body?.dataset.listed")
        yield page


async def look(page: DevTools, words: str, count: int) -> None:
    """Open the only episode of the list whose line has these words."""
    found = f"[...document.querySelectorAll('.episode')].filter(one => one.textContent.includes({json.dumps(words)}))"
    assert await page.evaluate(f"{found}.length") == count
    await page.evaluate(f"{found}[0].click()")


@pytest.mark.desktop
async def test_a_source_and_its_continuations_are_a_tree_that_is_linked_both_ways(page):
    await look(page, "fork at step 5 · done · 6 actions", 2)  # `again-0`, of a fork's fork, comes before `second-1`
    await wait_for(page, f"{POSITION} === 'step 1 of 2 after the fork'")
    texts = await page.evaluate(f"{ROWS}.map(one => one.textContent)")
    assert texts == [
        "0from its beginning · done · 6 steps",
        "1fork at step 3 · done · 4 steps",
        "0.5fork at step 3 · done · 4 steps",
        "1fork at step 5 · done · 2 steps",
        "0fork at step 3 · done · 3 steps",
        "lostfork at step 5 · given up: its replay came out differently",
        "1fork at step 5 · done · 2 steps",
    ]
    assert await page.evaluate(CURRENT) == 3
    facts = "document.querySelector('#replay .facts').textContent"
    assert "continues first-1 from step 5" in await page.evaluate(facts)

    await page.evaluate(f"{ROWS}[2].click()")  # to where it was forked
    await wait_for(page, f"{POSITION} === 'step 3 of 4 after the fork' && {CURRENT} === 2")
    marked = "[...document.querySelectorAll('#replay .tree circle')].findIndex(one => one.classList.contains('shown'))"
    before = await page.evaluate(marked)
    await page.evaluate("document.querySelector('#replay .next').click()")
    assert await page.evaluate(marked) == before + 1

    await page.evaluate(f"{ROWS}[0].click()")
    await wait_for(page, f"{POSITION} === 'step 3 of 6' && {CURRENT} === 0")
    await page.evaluate(f"{ROWS}[5].click()")  # which has no step of its own
    await wait_for(page, f"{CURRENT} === 5")
    side = await page.evaluate("document.querySelector('#replay .side').textContent")
    assert "the screen at step 4 differs" in side
    await page.evaluate("history.back()")
    await wait_for(page, f"{CURRENT} === 0")

    await page.evaluate("document.getElementById('words').value = 'fork'")
    await page.evaluate("document.getElementById('filter').dispatchEvent(new Event('input', {bubbles: true}))")
    assert await page.evaluate("document.getElementById('count').textContent") == "6 of 8"


@pytest.mark.desktop
async def test_an_episode_without_forks_has_no_tree(page):
    await look(page, f"{TASK}seed 7 · done · 6 actions", 2)  # `flat` comes before `source`
    await wait_for(page, f"{POSITION} === 'step 1 of 6'")
    assert await page.evaluate("document.querySelector('#replay .tree').hidden")


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 5)), min_size=1, max_size=30), st.integers(0, 29))
def test_a_tree_holds_its_family_once_each_behind_its_source_whatever_records_say(links, chosen):
    """Records may name themselves, each other, or nobody that is there."""
    records = [
        (place, episode(f"e{place}", f"e{parent}" if parent >= 0 else "", step))
        for place, (parent, step) in enumerate(links)
    ]
    chosen %= len(records)
    branches = tree_of(chosen, records)
    keys = [branch.key for branch in branches]
    assert chosen in keys and len(set(keys)) == len(keys) and branches[0].parent is None
    for place, branch in enumerate(branches[1:], 1):
        assert branch.parent in keys[:place] and branch.episode.forked_from == f"e{branch.parent}"
        assert branch.step == branch.episode.fork_step
    if len({parent for parent, _ in links}) == 1 and links[0][0] == -1:
        assert keys == [chosen]


async def test_a_tree_of_very_many_is_cut_and_says_so(tmp_path):
    write_episode(tmp_path / "d", episode("source"))
    for number in range(MOST_BRANCHES + 4):
        write_episode(tmp_path / "d", episode(f"c{number:04}", "source", 1))
    records = RecordedEpisodes([tmp_path])
    records.look()
    found = records.tree(str(tmp_path / "d/trajectories/c0100"))
    assert len(found["tree"]) == MOST_BRANCHES and found["more"] == 5
    foreign = write_episode(tmp_path / "d", replace(episode("odd", "source", 1), fork_step="x"))
    records.look()
    assert records._listed[str(foreign)].episode.lost_by == "record"
