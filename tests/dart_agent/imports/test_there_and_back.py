"""Each of our own exports can be imported: the record holds what was exported, and exported again it is the same."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dart_gym_dataset_export import export_dataset
from pyarrow import parquet

from dart_agent.episodes.episode_files import EpisodeWriter, RecordError, find_episodes, read_episode, read_image
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.exports.chat_rows import export_chat, export_chat_inline
from dart_agent.exports.exporters import EXPORTERS
from dart_agent.exports.osworld_results import export_results
from dart_agent.imports import dataset_files
from dart_agent.imports.importers import import_episodes
from dart_gym.core.actions import Click, Done, Press, Type, action_to_dict
from dart_gym.core.outcomes import TerminalState

SCREEN = (30, 20)
EXPORTS = {"osworld": export_results, "chat": export_chat, "chat-inline": export_chat_inline, "dataset": export_dataset}


def pixels(value: int, after: int | None = None) -> Pixels:
    made = [None if one is None else np.full((20, 30, 3), one, np.uint8) for one in (value, after)]
    return Pixels(screen=made[0], after=made[1])


def record(root: Path, task: str, seed: int, steps: list[Step], **ended: Any) -> Path:
    with EpisodeWriter(root, task, seed, policy="vlm", app="office", source="rollout") as writer:
        made = writer.begin(Trajectory(task, seed, "Do it, naïvely", task_hash="h"))
        for step in steps:
            writer.step(step)
        outcome = {"terminal": TerminalState.DONE, "score": 1.0, "evaluator": "test/1", "status": "ok", **ended}
        actions = sum(len(step.actions) for step in steps)
        writer.finish(replace(made, num_actions=actions, ended_at=1_000_000_000.0, **outcome))
    return root


CLICK = Step(
    text="Action: click(start_box='(1,2)')",
    thought="The button.",
    actions=(action_to_dict(Click(1, 2)), action_to_dict(Type("ü\n"))),
    screen=SCREEN,
    response_ids=(5, 6),
    logprobs=(-0.5, -0.25),
    timings={"generate": 0.5, "total": 0.25},
    pixels=pixels(1),
)
REFUSED = Step(text="Press it", actions=(action_to_dict(Press(("f1",))),), screen=SCREEN, action_error="no such key")
UNREAD = Step(text="Hm.", error="there is no action in it", screen=SCREEN, pixels=pixels(4))
DONE = Step(text="Done.", actions=(action_to_dict(Done()),), screen=SCREEN, actor="human", pixels=pixels(2, 3))


@pytest.fixture
def recorded(tmp_path) -> list[Path]:
    """Two members of a group, one out of steps whose decisions failed in different ways, and a lost one."""
    limit = [CLICK, replace(REFUSED, pixels=pixels(5)), UNREAD, replace(REFUSED, pixels=pixels(6, 7))]
    roots = [
        record(tmp_path / "a", "s/a", 7, [CLICK, DONE]),
        record(tmp_path / "b", "s/a", 7, [DONE], score=0.5),
        record(tmp_path / "c", "s/c", 0, limit, terminal=TerminalState.STEP_LIMIT, score=0.0),
        record(tmp_path / "d", "s/d", 0, [CLICK], terminal=TerminalState.ENV_ERROR, score=None, lost_by="environment"),
    ]
    return [path for root in roots for path in find_episodes(root)]


def rows_of(kind: str, out: Path) -> list[Any]:
    """All that an export holds, without when its decisions were made, and which member of a group is counted first."""
    if kind == "dataset":
        return [row for path in sorted(out.rglob("*.parquet")) for row in parquet.read_table(path).to_pylist()]
    found: list[Any] = []
    for path in sorted(out.rglob("*")):
        place = str(path.parent.relative_to(out)).replace("vlm-m1", "vlm")
        if path.is_file() and path.suffix != ".jsonl":
            found.append((place, path.name.rpartition("_")[0] or path.name, path.read_bytes()))
        elif path.is_file():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                row.pop("action_timestamp", None)
                row.pop("screenshot_file", None)
                found.append((place, row))
    return found


@pytest.mark.parametrize("kind", EXPORTS)
def test_what_went_out_comes_back(tmp_path, recorded, kind):
    export: Callable[[list[Path], Path], str] = EXPORTS[kind]
    export(recorded, tmp_path / "first")
    report = import_episodes(tmp_path / "first", tmp_path / "again")
    assert report.refused == (kind == "osworld"), report.problems  # the lost one has no score there
    again = list(find_episodes(tmp_path / "again"))
    assert len(again) == report.imported == (4 if kind == "dataset" else 3), "the members of a group are two"
    originals = [read_episode(path) for path in recorded]
    for path in again:
        after = read_episode(path)
        [before] = [one for one in originals if (one.task_id, one.score) == (after.task_id, after.score)]
        for name in ("seed", "instruction", "source", "policy", "app", "terminal", "lost_by"):
            assert getattr(after, name) == getattr(before, name), name
        sent = [step for step in before.steps if not (kind.startswith("chat") and step.error)]
        assert [(step.text, step.actions, step.screen) for step in after.steps] == [
            (step.text, step.actions, step.screen) for step in sent
        ]
        assert [step.screenshot for step in after.steps] == [step.screenshot for step in sent]
        assert all(read_image(path, name) for step in after.steps for name in step.shown_images)
        if not kind.startswith("chat"):
            assert [(step.error, step.action_error) for step in after.steps] == [
                (step.error, step.action_error) for step in sent
            ]
            assert after.steps[-1].screenshot_after == before.steps[-1].screenshot_after
        if kind == "dataset":
            assert [replace(step, screenshot="") for step in after.steps] == [
                replace(step, screenshot="") for step in before.steps
            ]
    export(again, tmp_path / "second")
    first = rows_of(kind, tmp_path / "first")
    if kind == "osworld":
        first = [row for row in first if not row[0].endswith("office/d")]  # the lost one
    key = str if kind != "dataset" else (lambda row: (row["task_id"], row["score"] or 0.0, row["step"]))
    assert sorted(rows_of(kind, tmp_path / "second"), key=key) == sorted(first, key=key)
    repeated = import_episodes(tmp_path / "first", tmp_path / "again")
    assert (repeated.imported, repeated.known) == (0, len(again)), "the second time all is there"


def test_every_exporter_is_tried_here():
    assert set(EXPORTS) == set(EXPORTERS.names())


@pytest.fixture
def dataset(tmp_path, recorded) -> Path:
    export_dataset(recorded, tmp_path / "set")
    [path] = (tmp_path / "set").rglob("*.parquet")
    return path


def changed(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    table = parquet.read_table(path)
    parquet.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), path)


WRONG: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "cut off": (lambda rows: rows[:-2], "2 of its 4 steps"),
    "a step twice": (lambda rows: rows[:2] + rows[1:], "3 of its 2 steps"),
    "no image": (lambda rows: [{**rows[0], "screenshot": {"bytes": b"GIF89a", "path": None}}, *rows[1:]], "cannot be"),
    "off its screen": (
        lambda rows: [{**rows[0], "actions": '[{"kind": "click", "x": 900, "y": 2}]'}, *rows[1:]],
        "off its screen",
    ),
    "no actions": (lambda rows: [{**rows[0], "actions": "["}, *rows[1:]], "no row of ours"),
    "an unknown end": (lambda rows: [{**rows[0], "terminal": "won"}, *rows[1:]], "no row of ours"),
    "a score of 7": (lambda rows: [{**rows[0], "score": 7.0}, *rows[1:]], "not in [0, 1]"),
    "a negative id": (lambda rows: [{**rows[0], "response_ids": [-1]}, *rows[1:]], "no id of a token"),
    "no number": (lambda rows: [{**rows[0], "timings": '{"a": 1e999, "b": []}'}, *rows[1:]], "no row of ours"),
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_row_refuses_its_episode_and_the_others_are_imported(tmp_path, dataset, change):
    edit, why = WRONG[change]
    changed(dataset, lambda rows: edit([row for row in rows if not row["lost_by"]]))
    report = import_episodes(dataset, tmp_path / "out")
    assert (report.imported, report.refused) == (2, 1) and why in report.problems[0], report


def test_an_episode_may_go_on_in_the_next_file(tmp_path, dataset):
    table = parquet.read_table(dataset)
    for index, part in enumerate((table.slice(0, 1), table.slice(1))):
        parquet.write_table(part, dataset.with_name(f"part-{index}.parquet"))
    dataset.unlink()
    assert import_episodes(tmp_path / "set", tmp_path / "out").imported == 4


def test_files_that_are_no_data_set_of_ours(tmp_path, dataset, monkeypatch):
    parquet.write_table(pa.table({"text": ["a"]}), dataset.with_name("a.parquet"))
    dataset.with_name("b.parquet").write_bytes(b"PAR1 no, it is not")
    report = import_episodes(tmp_path / "set", tmp_path / "out")
    assert (report.imported, report.refused) == (4, 2)
    assert "a.parquet: it is no data set of ours: it lacks the columns actions" in report.problems[0]
    assert "b.parquet: it cannot be read" in report.problems[1]
    monkeypatch.setattr(dataset_files, "MOST_BYTES", 10)
    assert "are there, or more than can be read" in import_episodes(dataset, tmp_path / "more").problems[0]


def test_a_file_that_unpacks_to_much_more_is_refused(tmp_path, dataset, monkeypatch):
    table = parquet.read_table(dataset)
    text = pa.array(["x" * 3_000_000] * table.num_rows)
    large = table.set_column(table.schema.get_field_index("text"), "text", text)
    parquet.write_table(large, dataset, compression="zstd", use_dictionary=False)
    monkeypatch.setattr(dataset_files, "ALLOWANCE", 1 << 20)
    report = import_episodes(dataset, tmp_path / "out")
    assert (report.imported, report.refused) == (0, 1) and "100 times its size" in report.problems[0]


def test_recorded_episodes_are_no_export(tmp_path, recorded):
    with pytest.raises(RecordError, match="recorded episodes already, which every command reads as they are"):
        import_episodes(tmp_path / "a", tmp_path / "out")


def test_a_run_in_one_file_is_for_another_command(tmp_path):
    with tarfile.open(tmp_path / "run.tar", "w") as tar:
        for name in ("manifest.json", "rows/rollout_run.jsonl"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"{}\n"))
    with pytest.raises(RecordError, match="dart-train data import CONFIG FILE"):
        import_episodes(tmp_path / "run.tar", tmp_path / "out")
