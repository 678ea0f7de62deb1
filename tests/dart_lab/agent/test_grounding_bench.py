"""The benchmark of grounders: its screens are exact, and it gives its keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_gym.tasks.suites.fake_suite import COLORS
from dart_lab.agent.agent_commands import app
from dart_lab.agent.drawn_screens_set import draw_items
from dart_lab.agent.grounding_bench import Sizes, measure


def test_boxes_are_exactly_where_the_colours_are():
    for item in draw_items(5, (168, 224), seed=3):
        color = COLORS[item.description.split()[1]]
        rows, columns = (item.screenshot() == color).all(-1).nonzero()
        (box,) = item.boxes
        edge = 1  # the border of a button is black
        assert (columns.min() - edge, rows.min() - edge) == (box.left, box.top)
        assert (columns.max() + 1 + edge, rows.max() + 1 + edge) == (box.right, box.bottom)


@pytest.mark.train
@pytest.mark.slow
def test_it_measures_all_three_ways():
    keys = measure(Sizes(seconds=1.0, screens=4, held_out=1), print).keys
    assert keys["ground.locate_per_s"] > 0 and keys["ground.text_locate_per_s"] > 0
    assert keys["ground.head_vs_text"] == keys["ground.head.168x112"] - keys["ground.text.168x112"]
    assert all(keys[f"ground.{name}.steps"] >= 1 for name in ("text", "head", "frozen", "verifier"))
    assert 0 <= keys["ground.verifier.without.low"] <= keys["ground.verifier.without"] <= 1


@pytest.mark.desktop
@pytest.mark.train
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_command_gives_the_four_keys_with_real_desktops(tmp_path: Path):
    out = tmp_path / "grounding.json"
    sizes = ["--seconds", "1", "--screens", "4", "--held-out", "1", "--steps", "3"]
    answer = CliRunner().invoke(app, ["grounding", *sizes, "--json", str(out)])
    assert answer.exit_code == 0, answer.output
    keys = json.loads(out.read_text())["keys"]
    assert {"ground.locate_per_s", "ground.head_vs_text", "ground.explorer_vs_random", "ground.novel_gain"} <= set(keys)
