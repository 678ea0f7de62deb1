"""Training of the head: it learns, what is frozen stays, bad items are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.grounding.candidate import Box, Query
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_training import batch_loss, train_pointer
from dart_agent.grounding.screenspot import GroundingItem, write_screenspot
from dart_gym.core.errors import ConfigurationError

pytestmark = pytest.mark.train


def item(x: int, y: int, *more: Box, name: str = "item") -> GroundingItem:
    """A red square on white."""
    screen = np.full((84, 112, 3), 255, np.uint8)
    screen[y : y + 28, x : x + 28] = (240, 60, 60)
    return GroundingItem(name, "the red button", (Box(x, y, x + 28, y + 28), *more), screen, (112, 84))


ITEMS = [item(x, y) for x in (0, 28, 56, 84) for y in (0, 28, 56)]


def weights_of(model: PointerModel) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.fixture
def model(tiny_dir: Path) -> PointerModel:
    torch.manual_seed(0)
    return PointerModel(tiny_dir, begin="", dtype="float32")


def test_the_head_learns_and_the_backbone_stays(model: PointerModel):
    before = weights_of(model)
    with torch.no_grad():
        loss = float(batch_loss(model, ITEMS))
    train_pointer(model, ITEMS, steps=25, batch_size=12, learning_rate=3e-3)
    with torch.no_grad():
        assert float(batch_loss(model, ITEMS)) < loss / 2
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    embeddings = "backbone.model.language_model.embed_tokens.weight"
    assert {name for name in moved if name.startswith("backbone")} == {embeddings}
    rows = (model.get_parameter(embeddings) != before[embeddings]).any(-1).nonzero()[:, 0].tolist()
    assert rows and set(rows) <= set(model.pointer_ids)
    assert not model.training and all(parameter.requires_grad for parameter in model.parameters())


def test_the_whole_learns_too_and_ends_when_it_is_told(model: PointerModel):
    before, told = weights_of(model), []

    def on_step(step: int, loss: float) -> bool:
        told.append((step, loss))
        return step == 3

    train_pointer(model, ITEMS, steps=50, batch_size=4, learning_rate=1e-3, whole=True, on_step=on_step)
    assert [step for step, _ in told] == [1, 2, 3]
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert any("visual" in name for name in moved) and any("language_model.layers" in name for name in moved)


def test_several_targets_are_trained_as_one_set(model: PointerModel):
    one, both = item(0, 0), item(0, 0, Box(84, 56, 112, 84))
    with torch.no_grad():
        logprobs, [(rows, columns)] = model([Query(both.description, both.screenshot())])
        found = float(batch_loss(model, [both]))
    grid = logprobs[0].view(rows, columns)
    assert found == pytest.approx(-np.log(2) - float(grid[0, 0] + grid[-1, -1]) / 2, rel=1e-4)
    with torch.no_grad():
        assert float(batch_loss(model, [one])) == pytest.approx(-float(grid[0, 0]), rel=1e-4)


def test_bad_items_are_named(model: PointerModel):
    bad = GroundingItem("set.json:7", "nothing", (Box(5, 5, 5, 9),), ITEMS[0].screenshot(), (112, 84))
    with pytest.raises(ConfigurationError, match="set.json:7"):
        train_pointer(model, [bad], steps=1, batch_size=1)
    with pytest.raises(ConfigurationError, match="do not fill"):
        train_pointer(model, ITEMS[:2], steps=1)
    with torch.no_grad():
        model.head.layer_norm.weight[0] = torch.nan
    with pytest.raises(ConfigurationError, match="not finite"):
        train_pointer(model, ITEMS, steps=1)


def test_the_command_trains_a_head_that_the_other_command_scores(tiny_dir: Path, tmp_path: Path):
    pairs, out, scores = tmp_path / "set", tmp_path / "grounder", tmp_path / "scores.json"
    write_screenspot(pairs, [item(56, 28)])
    train = ["ground", "train", str(pairs), "--model", str(tiny_dir), "--out", str(out)]
    steps = ["--steps", "40", "--batch-size", "1", "--learning-rate", "3e-3"]
    done = CliRunner().invoke(agent_cli.app, [*train, *steps], catch_exceptions=False)
    assert "40/40 steps, loss " in done.output and "written: " in done.output
    score = ["ground", "eval", str(pairs), "--model", str(out), "--json", str(scores)]
    CliRunner().invoke(agent_cli.app, score, catch_exceptions=False)
    assert json.loads(scores.read_text())[0]["hits"] == 1
    with pytest.raises(ConfigurationError, match="exists already"):
        CliRunner().invoke(agent_cli.app, train, catch_exceptions=False)
