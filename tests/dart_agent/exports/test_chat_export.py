"""Chat JSONL as others read it: `datasets` loads it, and TRL's `SFTTrainer` learns from it."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.engines.base.engine import Generation
from dart_agent.episodes.episode_files import EpisodeWriter, RecordError, episode_directory
from dart_agent.episodes.play import make_step
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.exports.chat_rows import export_chat
from dart_agent.policies.policy import Decision
from dart_gym.core.actions import Click, Done
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState


def record(root: Path, task: str, seed: int, score: float | None = 1.0, *, words: bool = True) -> Path:
    """Two decisions on a black screen with a white spot; a model's, or an oracle's without words."""
    with EpisodeWriter(root, task, seed, policy="vlm") as writer:
        made = writer.begin(Trajectory(task, seed, "Click on the spot"))
        screen = np.zeros((56, 56, 3), np.uint8)
        x = 10 + seed % 30
        screen[20:28, x : x + 8] = 255
        text = f"Action: click(start_box='({x},24)')" if words else ""
        generation = Generation(text, (5,), (-0.5,), (1, 1), "stop") if words else None
        first = Decision((Click(x, 24),), text, generation=generation)
        seen = Observation(screen, "Click on the spot")
        writer.step(make_step(seen, first, StepResult(seen), {}))
        last = Decision((Done(),), "Action: finished()" if words else "", generation=generation)
        writer.step(
            make_step(
                seen,
                last,
                StepResult(seen, TerminalState.DONE, Evaluation(EvaluationStatus.OK, score or 0.0, "t/1")),
                {},
            )
        )
        lost_by = "" if score is not None else "environment"
        writer.finish(
            replace(made, terminal=TerminalState.DONE, score=score, lost_by=lost_by, num_actions=2, ended_at=1.0)
        )
    return episode_directory(root, task, seed)


def rows(out: Path, name: str = "metadata.jsonl") -> list[dict]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def invoke(*arguments: object):
    return CliRunner().invoke(agent_cli.app, ["export", *map(str, arguments)], catch_exceptions=False)


def test_a_row_is_an_episode_and_what_is_left_out_is_said(tmp_path):
    record(tmp_path / "a", "s/one", 1)
    record(tmp_path / "a", "s/one", 2, 0.0)
    record(tmp_path / "a", "t/two", 3, words=False)
    record(tmp_path / "a", "t/two", 4, None)
    record(tmp_path / "b", "s/one", 1)  # the same once more
    said = invoke(tmp_path, tmp_path / "out", "--as", "chat").output
    assert "3 conversations" in said and "1 equal episodes left out" in said and "1 lost episodes left out" in said
    one, failed, oracle = rows(tmp_path / "out")
    assert [message["role"] for message in one["messages"]] == ["user", "assistant"] * 2
    assert one["messages"][0]["content"] == [{"type": "text", "text": "Click on the spot"}, {"type": "image"}]
    assert one["messages"][1]["content"][0]["text"] == "Action: click(start_box='(11,24)')"
    assert (one["score"], failed["score"], one["source"], one["policy"]) == (1.0, 0.0, "evaluation", "vlm")
    assert json.loads(one["actions"][0])[0]["kind"] == "click"
    assert "click(start_box=" in oracle["messages"][1]["content"][0]["text"], "written as a model would have"
    shot = tmp_path / "out" / one["images_file_names"][0]
    assert np.asarray(Image.open(shot))[24, 12].tolist() == [255] * 3


def test_filters_by_score_source_and_task(tmp_path):
    record(tmp_path / "e", "s/one", 1)
    record(tmp_path / "e", "s/one", 2, 0.0)
    record(tmp_path / "e", "t/two", 3)
    said = invoke(tmp_path / "e", tmp_path / "o", "--as", "chat", "--min-score", 1, "--task", "s/*").output
    assert [row["seed"] for row in rows(tmp_path / "o")] == [1]
    assert "1 episodes of other tasks left out" in said and "1 episodes with a score below 1 or none left out" in said
    with pytest.raises(RecordError, match="nothing to export.*3 episodes of other sources"):
        invoke(tmp_path / "e", tmp_path / "p", "--as", "chat", "--source", "human")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("kind", ["chat", "chat-inline", "dataset"])
def test_an_export_into_a_directory_that_holds_another_changes_nothing(tmp_path, kind):
    record(tmp_path / "e", "s/one", 1)
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "metadata.jsonl").write_text("mine")
    with pytest.raises(RecordError, match="holds something already"):
        invoke(tmp_path / "e", tmp_path / "o", "--as", kind)
    assert [path.name for path in tmp_path.iterdir() if path.name != "e"] == ["o"]
    assert (tmp_path / "o" / "metadata.jsonl").read_text() == "mine"


def test_a_missing_screenshot_leaves_no_half_of_an_export(tmp_path):
    episode = record(tmp_path / "e", "s/one", 1)
    for image in (tmp_path / "e" / "images").rglob("*.png"):
        image.unlink()
    with pytest.raises(RecordError, match="which is missing"):
        export_chat([episode], tmp_path / "o")
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


@pytest.mark.thorough
def test_images_in_the_rows(tmp_path):
    import datasets

    record(tmp_path / "e", "s/one", 1)
    invoke(tmp_path / "e", tmp_path / "o", "--as", "chat-inline")
    read = datasets.load_dataset(str(tmp_path / "o"), split="train", cache_dir=str(tmp_path / "cache"))
    head, data = read[0]["images"][0].split(",")
    assert head == "data:image/png;base64" and Image.open(io.BytesIO(base64.b64decode(data))).size == (56, 56)
