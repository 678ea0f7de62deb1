"""Accuracy of grounders: what counts as a hit, groups, intervals; and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.grounding.candidate import Box, Candidate, Grounding
from dart_agent.grounding.grounding_scores import accuracies, answers_of, evaluate_grounder, size_of
from dart_agent.grounding.screenspot import GroundingItem, write_screenspot
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.rates import wilson_interval

WHITE = np.full((100, 200, 3), 255, np.uint8)


def item(name: str, *boxes: Box, kind: str = "text", application: str = "files") -> GroundingItem:
    return GroundingItem(name, name, boxes, WHITE, (200, 100), kind, application, "debian")


SMALL, MEDIUM, LARGE = Box(0, 0, 4, 4), Box(10, 10, 20, 20), Box(100, 0, 200, 100)


def test_a_hit_is_a_first_candidate_in_any_of_the_boxes():
    answers = [
        (item("first", SMALL), [Candidate(4, 4)]),
        (item("second", MEDIUM, kind="icon"), [Candidate(0, 0), Candidate(15, 15)]),
        (item("either", SMALL, LARGE, application="mail"), [Candidate(150, 50)]),
        (item("nothing found", LARGE, application="mail"), []),
    ]
    rows = {(row.group, row.value): row for row in accuracies(answers)}
    whole = rows["all", ""]
    assert (whole.items, whole.hits, whole.hits_of_k, whole.rate) == (4, 2, 3, 0.5)
    assert (whole.low, whole.high) == wilson_interval(2, 4)
    assert (rows["kind", "icon"].hits, rows["kind", "icon"].hits_of_k) == (0, 1)
    assert (rows["application", "mail"].items, rows["application", "mail"].hits) == (2, 1)
    assert {value for group, value in rows if group == "size"} == {"small", "medium", "large"}


@pytest.mark.parametrize(("side", "size"), [(4, "small"), (5, "medium"), (15, "large")])
def test_sizes_are_shares_of_the_screen(side: int, size: str):
    assert size_of(item("x", Box(0, 0, side, side), LARGE)) == size


async def test_items_are_asked_in_batches():
    asked: list[int] = []

    class Middles:
        async def locate(self, description, screenshot, k=1):
            raise AssertionError("not one by one")

        async def locate_batch(self, queries, k=1):
            asked.append(len(queries))
            return [Grounding((Candidate(*map(int, query.description.split())),)) for query in queries]

    items = [item(f"{x} 5", Box(x, 0, x + 1, 10)) for x in range(5)]
    answers = await answers_of(Middles(), items, batch=2)
    assert asked == [2, 2, 1] and accuracies(answers)[0].rate == 1.0
    assert (await evaluate_grounder(Middles(), items)) == accuracies(answers)


@pytest.mark.train
def test_the_command_scores_a_head_and_text(tiny_dir: Path, tmp_path: Path):
    from dart_agent.grounding.pointer_model import PointerModel

    write_screenspot(tmp_path / "set", [item("the OK button", MEDIUM), item("close", LARGE, kind="icon")])
    bad = json.loads((tmp_path / "set/annotations/files.json").read_text())
    bad.append({**bad[0], "bbox": [5, 5, 5, 5]})
    (tmp_path / "set/annotations/files.json").write_text(json.dumps(bad))
    saved = PointerModel(tiny_dir, begin="").save(tmp_path / "model")
    for more in ([], ["--text", "--relative", "200"]):
        out = tmp_path / "scores.json"
        command = [
            "ground",
            "eval",
            str(tmp_path / "set"),
            "--model",
            str(saved),
            "--k",
            "2",
            "--json",
            str(out),
            "--picture",
            str(tmp_path / "hits.html"),
            *more,
        ]
        result = CliRunner().invoke(agent_cli.app, command, catch_exceptions=False)
        assert "left out: files.json:2: the box has no area" in result.output
        rows = json.loads(out.read_text())
        assert rows[0]["group"] == "all" and rows[0]["items"] == 2
        assert {row["value"] for row in rows if row["group"] == "kind"} == {"text", "icon"}
        assert "<h1>model on set</h1>" in (tmp_path / "hits.html").read_text()
    (tmp_path / "set/annotations/files.json").write_text(json.dumps(bad[2:]))
    with pytest.raises(ConfigurationError, match="no item"):
        CliRunner().invoke(agent_cli.app, command, catch_exceptions=False)
