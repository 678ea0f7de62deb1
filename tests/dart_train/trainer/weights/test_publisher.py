"""What is published, kept and deleted, without a model."""

from __future__ import annotations

import json
import shutil
import threading

import pytest
import torch
from safetensors.torch import load_file

from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, base_model
from dart_train.trainer.weights.checkpoint import version_dir
from dart_train.trainer.weights.model_loading import load_model
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
    publisher = Publisher(data, root, source, every=1, keep=2, save=copy_companion, take=None)
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


def beside(data, tmp_path, save):
    given = tmp_path / "given"
    given.mkdir()
    (given / "tokenizer.json").write_text("{}")
    data.publish(0, given, source="initial")
    publisher = Publisher(data, tmp_path / "c", given, every=1, keep=2, save=save, take=lambda model, *_: list(model))
    publisher.begin(["w"], None, given, None)
    return publisher


def test_a_version_is_written_beside_training_from_the_weights_of_its_moment(tmp_path, data):
    going, written = threading.Event(), []

    def save(taken, directory, source_dir, **facts):
        assert going.wait(60)
        written.append(taken)
        return copy_companion(taken, directory, source_dir)

    publisher = beside(data, tmp_path, save)
    model = ["first"]
    publisher.publish(model, 1, 1)  # returns though nothing can be written yet
    model[0] = "changed by the next step"
    assert publisher.version == 1 and publisher.unpublished == 0
    assert data.newest_checkpoint().version == 0
    assert [row.status for row in data.checkpoints() if row.version == 1] == ["RUNNING"]
    going.set()
    publisher.settle()
    assert written == [["first"]]
    assert data.newest_checkpoint().version == 1


def test_a_version_that_cannot_be_written_ends_training_at_the_next_one(tmp_path, data):
    def save(taken, directory, source_dir, **facts):
        raise OSError("no space left")

    publisher = beside(data, tmp_path, save)
    publisher.publish(["w"], 1, 1)
    with pytest.raises(OSError, match="no space left"):
        publisher.publish(["w"], 2, 2)
    assert [row.status for row in data.checkpoints() if row.version] == ["FAILED"]
    publisher.close()


@pytest.mark.train
@pytest.mark.parametrize("adapted", [False, True])
def test_versions_have_the_number_type_of_the_model_that_was_given(tmp_path, model_dir, adapted):
    """33 GB instead of 17 for a 7B model, and twice the time to read it, was what float32 cost."""
    given = tmp_path / "given"
    shutil.copytree(model_dir, given)
    load_model(model_dir, dtype=torch.bfloat16).save_pretrained(given)
    model = load_model(given)
    assert model.dtype is torch.float32  # it is trained in float32
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e-3 * torch.randn_like(parameter)
    if adapted:
        model = add_adapter(model, LoraSettings(r=2))
    path = checkpoint.write_model(model, tmp_path / "v000001", given)
    tensors = load_file(path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    config = json.loads((path / "config.json").read_text())
    assert config["dtype"] == config["text_config"]["dtype"] == "bfloat16"
    back = load_model(path)
    own = {name.replace(".base_layer", ""): parameter for name, parameter in base_model(model).named_parameters()}
    for name, parameter in back.named_parameters():
        assert torch.equal(parameter, own[name].bfloat16().float()), name
    assert model.dtype is torch.float32
    plain = checkpoint.write_model(load_model(model_dir), tmp_path / "v000002", model_dir)
    assert {tensor.dtype for tensor in load_file(plain / "model.safetensors").values()} == {torch.float32}
