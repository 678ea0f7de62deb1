"""The trainer's states in an object store: another node goes on from the newest one that is whole."""

from pathlib import Path

import pytest

from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.publisher import Publisher, beside
from dart_train.trainer.weights.shared_states import FOLDER, NEWEST, SharedStates

pytestmark = pytest.mark.thorough


@pytest.fixture
def data(bucket, tmp_path):
    with DataManager.open(f"sqlite:///{tmp_path}/db.sqlite", f"{bucket}/{tmp_path.name}", "r") as data:
        yield data


def saved(output_dir: Path, step: int) -> Path:
    directory = output_dir / f"checkpoint-{step}"
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_text(f"weights of step {step}")
    checkpoint.mark_complete(checkpoint.ResumePoint(directory, step=step, version=step, unpublished=0, lease=step))
    return directory


def test_another_node_goes_on_from_the_newest_state(data, tmp_path):
    states = SharedStates(data, beside)
    for step in (2, 4):
        states.put(saved(tmp_path / "lost", step))
    states.settle()
    folders = {entry.key.split("/")[1] for entry in data.files.storage.entries(FOLDER)}
    assert folders == {"checkpoint-4"} and data.fact(NEWEST) == "checkpoint-4"
    SharedStates(data, beside).fetch(tmp_path / "other")
    point = checkpoint.resume_point(tmp_path / "other")
    assert point.step == 4 and point.lease == 4
    assert (point.path / "model.safetensors").read_text() == "weights of step 4"


def test_a_newer_state_of_the_node_itself_is_kept(data, tmp_path):
    states = SharedStates(data, beside)
    states.put(saved(tmp_path / "lost", 2))
    states.settle()
    saved(tmp_path / "own", 6)
    SharedStates(data, beside).fetch(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").glob("checkpoint-*")] == ["checkpoint-6"]


def test_a_state_that_is_gone_costs_the_way_back_alone(data, tmp_path, caplog):
    data.set_fact(NEWEST, "checkpoint-8")
    SharedStates(data, beside).fetch(tmp_path / "other")
    assert checkpoint.resume_point(tmp_path / "other") is None
    assert "training goes on from the newest version" in caplog.text


def test_old_versions_of_a_lost_node_are_removed_from_the_store(data, tmp_path):
    for number in range(5):
        made = tmp_path / "lost" / f"v{number:06d}"
        made.mkdir(parents=True)
        (made / "config.json").write_text("{}")
        data.publish(number, made, source="initial" if number == 0 else "training")
    publisher = Publisher(data, tmp_path / "other", tmp_path / "lost" / "v000000", every=1, keep=2)
    publisher.fail_unfinished()
    left = {entry.key.split("/")[1] for entry in data.files.storage.entries("versions")}
    assert left == {"v000000", "v000003", "v000004"}
    assert [row.version for row in data.checkpoints() if row.status == "DEPRECATED"] == [2, 1]


def test_what_several_nodes_wrote_of_a_state_comes_together(data, tmp_path):
    nodes = [SharedStates(data, beside) for _ in range(2)]
    for step in (2, 4):
        written = tmp_path / "second" / f"checkpoint-{step}" / "parts" / "1.distcp"
        written.parent.mkdir(parents=True)
        written.write_text(f"second part of step {step}")
        (tmp_path / "second" / "checkpoint-1").mkdir(exist_ok=True)  # that training went on from
        nodes[1].put_part(written.parents[1], 1)
        nodes[0].put(saved(tmp_path / "first", step))
        nodes[0].settle()
    assert not list((tmp_path / "second").iterdir())  # else states would pile up there
    folders = {entry.key.split("/")[1] for entry in data.files.storage.entries(FOLDER)}
    assert folders == {"checkpoint-4", "checkpoint-4-node1"}
    SharedStates(data, beside).fetch(tmp_path / "other")
    point = checkpoint.resume_point(tmp_path / "other")
    assert point.step == 4 and (point.path / "parts" / "1.distcp").read_text() == "second part of step 4"
