"""What is published, kept and deleted, without a model."""

from __future__ import annotations

import pytest

from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.weights.checkpoint import version_dir
from dart_train.trainer.weights.publisher import Publisher


@pytest.fixture
def data(tmp_path):
    with DataManager.open(url=f"sqlite:///{tmp_path / 'd.sqlite'}", root=tmp_path, run_id="r") as manager:
        yield manager


def copy_companion(model, directory, source_dir, **facts):
    """Write a version as the trainer does: its weights, and the tokenizer of another one."""
    text = (source_dir / "tokenizer.json").read_text()
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text(text)
    return directory


def publish(data, root, source, times, version=0):
    publisher = Publisher(data, root, source, every=1, keep=2, save=copy_companion)
    publisher.version = version
    publisher.begin("weights", None, source, None)
    for step in range(times):
        publisher.served = publisher.version + 1
        publisher.publish("weights", step, step)
    return sorted(path.name for path in root.iterdir())


def test_a_trainer_that_began_from_a_version_keeps_it_while_it_copies_from_it(tmp_path, data):
    given = tmp_path / "given"
    given.mkdir()
    (given / "tokenizer.json").write_text("{}")
    data.publish(0, given, source="initial")
    root = tmp_path / "checkpoints"
    assert publish(data, root, given, 3) == ["v000002", "v000003"]
    began = version_dir(root, 3)
    assert publish(data, root, began, 4, version=3) == ["v000003", "v000006", "v000007"]
    assert publish(data, root, version_dir(root, 7), 3, version=7) == ["v000007", "v000009", "v000010"]
