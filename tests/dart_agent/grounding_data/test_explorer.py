"""The explorer: more screens than chance and breadth-first, traps avoided, parts that can be switched off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dart_gym_grounding_data.exploration_graph import Deed, Graph, deeds_on
from dart_gym_grounding_data.exploration_page import write_exploration
from dart_gym_grounding_data.explorer import PARTS, Explorer
from dart_gym_grounding_data.model_proposer import marks_of
from dart_gym_grounding_data.screen_elements import Element, Screen

from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_lab.agent.explorer_bench import BreadthExplorer, RandomExplorer, ratio_of, report_of
from tests.helpers.rooms import CLOSED, Rooms, house

STEPS = 30


async def found_by(kind: type[Explorer], seed: int, **options) -> tuple[Explorer, Rooms]:
    place = Rooms(house())
    explorer = kind(place, STEPS, seed, **options)
    await explorer.run()
    return explorer, place


async def test_it_finds_more_screens_than_chance_and_breadth_first():
    counts = {
        kind: [len((await found_by(kind, seed))[0].graph.nodes) for seed in range(5)]
        for kind in (Explorer, RandomExplorer, BreadthExplorer)
    }
    mine = sum(counts[Explorer])
    assert mine >= 1.5 * sum(counts[RandomExplorer]) and mine >= 1.2 * sum(counts[BreadthExplorer])


@pytest.mark.parametrize("kind", [Explorer, RandomExplorer, BreadthExplorer])
async def test_every_deed_and_every_reset_is_counted(kind):
    explorer, place = await found_by(kind, 0)
    assert len(place.deeds) + explorer.resets == STEPS == len(explorer.found)
    assert place.begun == explorer.resets + 1
    assert explorer.found == sorted(explorer.found) and explorer.found[-1] == len(explorer.graph.nodes)


async def test_a_trap_is_not_entered_again_unless_that_part_is_off():
    explorer, place = await found_by(Explorer, 1)
    assert sum(deed.endswith("/quit") for deed in place.deeds) <= 1
    careless, _ = await found_by(Explorer, 1, left_out=frozenset(("traps", "proposals")))
    ends = [edge.trouble for edge in careless.graph.edges if edge.after is None]
    assert set(ends) <= {CLOSED} and len(ends) >= len([e for e in explorer.graph.edges if e.trouble])


async def test_it_is_deterministic_by_its_seed():
    assert (await found_by(Explorer, 3))[1].deeds == (await found_by(Explorer, 3))[1].deeds


@pytest.mark.parametrize("part", PARTS)
async def test_each_part_can_be_switched_off(part):
    explorer, place = await found_by(Explorer, 0, left_out=frozenset((part,)))
    assert len(explorer.found) == STEPS and len(explorer.graph.nodes) > 1
    assert place.deeds != (await found_by(Explorer, 0))[1].deeds or part in ("traps", "ucb", "usefulness", "novelty")


def test_a_part_that_is_none_is_named():
    with pytest.raises(ConfigurationError, match="no part 'luck'; choose novelty"):
        Explorer(Rooms(house()), 1, left_out=frozenset(("luck",)))


async def test_a_dead_end_is_left():
    place = Rooms({"hall": {"to cell": "cell", "to yard": "yard"}, "cell": {}, "yard": {}})
    explorer = Explorer(place, 6)
    await explorer.run()
    assert len(explorer.graph.nodes) == 3


async def test_a_place_that_cannot_be_begun_is_an_error():
    class Locked(Rooms):
        async def reset(self) -> Screen:
            return Screen(np.zeros((6, 8, 3), np.uint8), trouble="the application asks for a password")

    with pytest.raises(DesktopError, match="asks for a password"):
        await Explorer(Locked(house()), 5).run()


async def test_who_looks_at_a_new_screen_may_change_the_place():
    place, seen = Rooms(house()), []

    async def look(node) -> Screen:
        seen.append(node.number)
        return await place.reset()

    explorer = Explorer(place, STEPS, arrived=look)
    await explorer.run()
    assert seen == list(range(len(explorer.graph.nodes)))


def test_what_would_end_the_session_is_not_proposed_and_lists_are_cut():
    hall = Rooms({"hall": {"Log Out": CLOSED, "Shut down…": CLOSED, "Restart": CLOSED, "Go": ""}}).screen()
    assert [deed.element.name if deed.element else "" for deed in deeds_on(hall)] == ["Go", ""]
    rows = tuple(Element("list-item", "row", element.box, number=n) for n in range(50) for element in hall.elements[:1])
    assert len(list(deeds_on(Screen(hall.image, rows)))) == 8 + 1
    buttons = tuple(Element("push-button", "b", hall.elements[0].box, number=n) for n in range(3000))
    assert len(list(deeds_on(Screen(hall.image, buttons)))) == 80 + 1


def test_a_disabled_element_is_not_clicked():
    hall = Rooms({"hall": {"Go": ""}}).screen()
    off = Element("push-button", "Go", hall.elements[0].box, enabled=False)
    assert [deed.kind for deed in deeds_on(Screen(hall.image, (off,)))] == ["key"]


async def test_its_page_and_data_tell_what_was_done(tmp_path: Path):
    place = Rooms({"hall": {"to <yard></script>": "yard", "quit": CLOSED}, "yard": {}})
    explorer = Explorer(place, 6, left_out=frozenset(("proposals",)))
    await explorer.run()
    write_exploration(tmp_path, explorer.graph, "rooms & more")
    rows = [json.loads(line) for line in (tmp_path / "deeds.jsonl").read_text().splitlines()]
    assert {"before", "action", "element", "query", "after", "reward", "trouble"} == set(rows[0])
    assert any(row["query"] == 'the menu "to <yard></script>"' and row["after"] == 1 for row in rows)
    assert len(list((tmp_path / "screens").glob("*.png"))) == len(explorer.graph.nodes) == 2
    page = (tmp_path / "graph.html").read_text()
    assert page.count("</script>") == 1 and "data:image/jpeg" in page and "/*DATA*/" not in page


def test_marks_are_read_and_nothing_else_is():
    keys = ["click|menu|File|0", "click|push-button|Close|0"]
    assert marks_of("0: 8\n1: 25\n2: 9\nnonsense\n1 -> 3", keys) == {keys[0]: 0.8, keys[1]: 1.0}
    assert marks_of("", keys) == {} == marks_of("import os; os.system('x')", keys)


def test_ratios_have_an_interval_around_them():
    found = {("a", "explorer"): [10, 12, 14], ("a", "random"): [5, 6, 7], ("a", "memory"): [12, 12, 12]}
    ratio, low, high = ratio_of(found, "random")
    assert ratio == 2 and 1.4 < low < 2 < high < 2.8
    keys = report_of(found, 30).keys
    assert keys["ground.explorer_vs_random"] == 2 and keys["ground.explorer_without.memory"] == 1


def test_moving_a_window_changes_where_a_deed_is_done_and_not_its_node():
    graph, hall = Graph(), Rooms(house()).screen()
    moved = Screen(np.roll(hall.image, 3, axis=1), tuple(
        Element(e.role, e.name, type(e.box)(e.box.left + 3, e.box.top, e.box.right + 3, e.box.bottom), e.within)
        for e in hall.elements))  # fmt: skip
    first, new = graph.find(hall, 0)
    again, newer = graph.find(moved, 1)
    assert (new, newer) == (True, False) and first is again
    assert all(deed.element is None or deed.element.box.left == 7 for deed in again.deeds.values())
    assert Deed("click", hall.elements[0]).key in again.deeds
