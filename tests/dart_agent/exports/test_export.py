"""Recorded episodes as OSWorld's results and as a Hugging Face data set, read back by others' means."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dart_gym_dataset_export import build_dataset, export_dataset, write_parquet
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.engines.base.engine import Generation
from dart_agent.episodes.episode_files import (
    EpisodeWriter,
    RecordError,
    episode_directory,
    find_episodes,
    read_episode,
    read_image,
)
from dart_agent.episodes.play import make_step
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.exports.chat_rows import export_chat
from dart_agent.exports.osworld_results import export_osworld, export_results
from dart_agent.imports.importers import import_episodes
from dart_agent.policies.policy import Decision
from dart_gym.core.actions import Click, Done, Type
from dart_gym.core.errors import PluginError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState


def screen(value: int) -> np.ndarray:
    return np.full((20, 30, 3), value, np.uint8)


def record(root: Path, task: str, seed: int, score: float | None = 1.0, policy: str = "vlm") -> Path:
    """Two decisions of which the first has two actions. Returns where they lie."""
    ok = score is not None
    evaluation = Evaluation(EvaluationStatus.OK if ok else EvaluationStatus.ENVIRONMENT_ERROR, score, "test/1")
    with EpisodeWriter(root, task, seed, policy=policy, app="office") as writer:
        made = writer.begin(Trajectory(task, seed, "Do it"))
        generation = Generation("Action: \ud800", (5, 6), (-0.5, float("nan")), (1, 2), "stop")
        first = Decision((Click(1, 2), Type("ü")), generation.text, "why", generation=generation)
        between, after = Observation(screen(1), "Do it"), Observation(screen(2), "Do it", "no such key")
        writer.step(make_step(between, first, StepResult(after), {"generate": 0.5, "total": 0.25}))
        last = StepResult(Observation(screen(3), "Do it"), TerminalState.DONE, evaluation)
        writer.step(make_step(after, Decision((Done(),), actor="human"), last, {}))
        lost_by = "" if ok else "environment"
        ended = replace(made, terminal=TerminalState.DONE, score=score, lost_by=lost_by, num_actions=3)
        writer.finish(replace(ended, ended_at=1_000_000_000.0))
    return episode_directory(root, task, seed)


def results_as_osworld_reads_them(root: Path) -> dict[str, dict[str, float]]:
    """The reading part of OSWorld's `show_result.py`: domain -> example -> score."""
    found: dict[str, dict[str, float]] = {}
    for domain in root.iterdir():
        for example in domain.iterdir():
            if "result.txt" in [path.name for path in example.iterdir()]:
                found.setdefault(domain.name, {})[example.name] = float((example / "result.txt").read_text())
    return found


def test_osworlds_layout(tmp_path):
    records = [
        record(tmp_path / "e", "s/a", 0), record(tmp_path / "e", "s/a", 1, 0.0), record(tmp_path / "e", "s/b", 0, None),
    ]  # fmt: skip
    exported = export_osworld(records, tmp_path / "out")
    assert (exported.episodes, exported.lost) == (2, 1)
    shots = tmp_path / "out/dart/screenshot"
    assert results_as_osworld_reads_them(shots / "vlm") == {"office": {"a": 1.0}}, "a lost episode is not finished"
    assert results_as_osworld_reads_them(shots / "vlm-s1") == {"office": {"a": 0.0}}
    example = shots / "vlm/office/a"
    lines = [json.loads(line) for line in (example / "traj.jsonl").read_text().splitlines()]
    assert [(line["step_num"], line["action"]["kind"], line["done"], line["reward"]) for line in lines] == [
        (1, "click", False, 0.0), (2, "type", False, 0.0), (3, "done", True, 1.0),
    ]  # fmt: skip
    assert lines[0]["info"] == {"error": "no such key"} and lines[0]["action_timestamp"] < lines[2]["action_timestamp"]
    values = [np.asarray(Image.open(example / line["screenshot_file"]))[0, 0, 0] for line in lines]
    assert values == [2, 2, 3], "each shows what came of its decision"
    assert len(list(example.glob("step_0_*.png"))) == 1
    again = export_osworld(records, tmp_path / "out")
    assert (again.episodes, again.lost, again.left_out) == (0, 0, 3), "nothing that is there is replaced"
    assert len(list(example.iterdir())) == 6


def test_members_of_a_group_have_paths_of_their_own(tmp_path):
    """Equal task and seed: each is a model of its own, and the number that is said is the number that is there."""
    group = [record(tmp_path / f"member{n}", "s/a", 7, score) for n, score in enumerate((1.0, 0.0, None, 1.0))]
    said = export_results(group, tmp_path / "out")
    found = sorted(float(path.read_text()) for path in (tmp_path / "out").rglob("result.txt"))
    assert found == [0.0, 1.0, 1.0] and said.startswith("3 results, 1 lost")
    record(tmp_path / "other", "s/a", 7, 0.0)
    with pytest.raises(RecordError, match="0 results; 1 left out"):
        export_results([tmp_path / "other" / "trajectories" / "s+a.s7"], tmp_path / "out")
    assert sorted(float(path.read_text()) for path in (tmp_path / "out").rglob("result.txt")) == found


@pytest.mark.parametrize("kind", ["osworld", "chat", "chat-inline"])
def test_what_is_damaged_is_left_out_and_said_and_nothing_at_all_is_an_error(tmp_path, kind):
    cut, bare, _ = (record(tmp_path / "e", "s/a", seed) for seed in range(3))
    (cut / "trajectory.msgpack").write_bytes((cut / "trajectory.msgpack").read_bytes()[:50])
    shown = read_episode(bare).steps[0].screenshot
    record(tmp_path / "lost", "s/b", 0, None)

    def ends(source: Path, out: str) -> str:
        done = CliRunner().invoke(agent_cli.app, ["export", str(source), str(tmp_path / out), "--as", kind])
        return str(done.exception or done.output)

    assert "1 episodes that are damaged (cannot read" in ends(tmp_path / "e", "whole")
    lost = CliRunner().invoke(agent_cli.app, ["export", str(tmp_path / "lost"), str(tmp_path / "l"), "--as", kind])
    assert isinstance(lost.exception, RecordError) and "lost" in str(lost.exception)
    for image in (tmp_path / "e" / "images").rglob(f"{shown}*"):
        image.unlink()
    assert "which is missing" in ends(tmp_path / "e", "without"), "all three show it"
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.thorough
def test_a_data_set(tmp_path):
    import datasets  # takes a second: not when tests are collected

    one, two = record(tmp_path / "e", "s/a", 0), record(tmp_path / "e", "s/b", 3, None)
    made = build_dataset([one, two], tmp_path / "cache")
    [path] = write_parquet(made, tmp_path / "out")
    assert path.name == "train-00000-of-00001.parquet"
    read = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache2"))
    assert len(read) == 4 and read.column_names[0] == "episode" and str(read.features["screenshot"]).startswith("Image")
    row = read[0]
    assert (row["episode"], row["step"], row["steps"], row["score"], row["instruction"]) == (
        "s/a/s0",
        0,
        2,
        1.0,
        "Do it",
    )
    assert np.asarray(row["screenshot"])[0, 0].tolist() == [1, 1, 1] and row["screenshot"].size == (30, 20)
    assert json.loads(row["actions"])[1] == {"kind": "type", "text": "ü"}
    assert (row["response_ids"], row["logprobs"], row["text"]) == ([5, 6], [-0.5, None], "Action: ?")
    assert (row["action_error"], json.loads(row["timings"])["generate"]) == ("no such key", 0.5)
    assert (read[3]["actor"], read[3]["score"], read[3]["lost_by"]) == ("human", None, "environment")
    with pytest.raises(RecordError, match="no recorded episodes"):
        build_dataset([], tmp_path / "cache")


@pytest.mark.thorough
def test_the_command(tmp_path):
    record(tmp_path / "e", "s/a", 0)

    def invoke(*arguments: str) -> str:
        return CliRunner().invoke(agent_cli.app, ["export", *arguments], catch_exceptions=False).output

    assert "1 results" in invoke(str(tmp_path / "e"), str(tmp_path / "o"))
    assert "2 steps in 1 files" in invoke(str(tmp_path / "e"), str(tmp_path / "d"), "--as", "dataset")
    assert Image.open(io.BytesIO(next((tmp_path / "o").rglob("step_0*.png")).read_bytes())).size == (30, 20)
    with pytest.raises(RecordError, match="no complete episode"):
        invoke(str(tmp_path / "o"), str(tmp_path / "x"))
    assert "1 counted" in invoke(str(tmp_path / "e"), str(tmp_path / "x"), "--as", f"{__name__}:count")
    with pytest.raises(PluginError, match="did you mean 'dataset'"):
        invoke(str(tmp_path / "e"), str(tmp_path / "x"), "--as", "datasets")
    with pytest.raises(PluginError, match="is called with .episodes, out., but takes .value"):
        invoke(str(tmp_path / "e"), str(tmp_path / "x"), "--as", f"{__name__}:screen")


def count(episodes: list[Path], out: Path) -> str:
    """An exporter of one's own."""
    return f"{len(episodes)} counted"


def damage_end(episode: Path) -> None:
    """Cut the record short where its steps are, so that the outcome at its end cannot be read."""
    path = episode / "trajectory.msgpack"
    path.write_bytes(path.read_bytes()[:50])


def test_a_damaged_record_is_left_out_also_where_the_function_is_called(tmp_path):
    whole, cut = record(tmp_path / "e", "s/a", 0), record(tmp_path / "e", "s/b", 0)
    damage_end(cut)
    exported = export_osworld([cut, whole], tmp_path / "out")
    assert exported.episodes == 1 and len(exported.damaged) == 1 and "s+b.s0" in exported.damaged[0]
    assert "1 damaged ones left out" in export_results([whole, cut], tmp_path / "again")


@pytest.mark.thorough
def test_a_data_set_leaves_out_what_is_damaged(tmp_path):
    whole, cut = record(tmp_path / "e", "s/a", 0), record(tmp_path / "f", "s/b", 0)
    damage_end(cut)
    assert export_dataset([whole, cut], tmp_path / "out").startswith("2 steps in 1 files; 1 damaged episodes left out")
    with pytest.raises(RecordError, match="all episodes are damaged"):
        export_dataset([cut], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_export_removes_nothing_of_others_whatever_its_name(tmp_path):
    episodes = [record(tmp_path / "e", task, 0, policy="p") for task in ("s/a", "s/a.partial")]
    for mine in (tmp_path / "sft.partial", tmp_path / ".sft.partial"):
        mine.mkdir()
        (mine / "thesis.txt").write_text("dear")
    assert export_chat(episodes[:1], tmp_path / "sft").startswith("1 conversations")
    assert all(path.read_text() == "dear" for path in tmp_path.glob("*sft.partial/thesis.txt"))
    assert len(list(tmp_path.glob("*sft.partial/thesis.txt"))) == 2
    assert export_results(episodes[::-1], tmp_path / "out").startswith("2 results")
    assert len(list((tmp_path / "out").rglob("result.txt"))) == 2, "an example may end in .partial"


def test_paths_may_be_texts(tmp_path):
    episode = record(tmp_path / "e", "s/a", 0)
    assert read_episode(str(episode)).task_id == "s/a"
    assert [*find_episodes(str(tmp_path / "e"))] == [episode] == [episode_directory(str(tmp_path / "e"), "s/a", 0)]
    assert read_image(str(episode), read_episode(episode).steps[0].screenshot) is not None
    assert export_osworld([str(episode)], str(tmp_path / "out")).episodes == 1
    assert export_chat([str(episode)], str(tmp_path / "chat")).startswith("1 conversations")
    assert import_episodes(str(tmp_path / "chat"), str(tmp_path / "back")).imported == 1
