"""States are written beside the training: what is in them, who waits for whom, and where errors go."""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.grpo_trainer import DartGRPOTrainer
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.ranks import ALONE, Ranks
from dart_train.trainer.weights.state_writer import StateWriter
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.train


def test_a_copy_is_of_its_moment_and_keeps_what_was_shared_shared():
    shared = torch.ones(3)
    state = {"a": shared, "b": shared, "deep": {0: {"step": torch.zeros(()), "rate": 0.1}}}
    found = StateWriter(ALONE).copied(state)
    shared.fill_(7.0)
    assert found["a"].tolist() == [1.0] * 3 and found["a"].data_ptr() == found["b"].data_ptr() != shared.data_ptr()
    assert found["deep"][0]["rate"] == 0.1 and found["deep"][0]["step"].item() == 0.0
    assert StateWriter(ALONE, beside=False).copied(state) is state


def test_the_next_state_waits_for_the_one_before_and_the_end_for_the_last():
    writer, events, gate = StateWriter(ALONE), [], threading.Event()
    writer.add(gate.wait)
    writer.write(lambda: events.append("first"))
    writer.check()  # waits for nothing
    assert not events
    threading.Timer(0.1, gate.set).start()
    writer.add(lambda: events.append("second begins"))
    writer.write(lambda: events.append("second"))
    assert events[0] == "first"
    writer.settle()
    assert events == ["first", "second begins", "second"]


@pytest.mark.parametrize("beside", [True, False])
def test_what_a_thread_raises_the_training_raises(beside):
    completed: list[str] = []
    writer = StateWriter(ALONE, beside=beside)
    writer.add(lambda: Path("/dev/full").write_text("x" * 100_000))
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012  # by the second call at the latest
        writer.write(lambda: completed.append("state"))
        wait_until(lambda: (future := writer.writing.future) is not None and future.done())
        writer.check()
    writer.settle()  # raised once
    assert not completed


@dataclass(frozen=True)
class _WithAnother(Ranks):
    def gather(self, value):
        return [value, "OSError: disk full"]


def test_a_state_counts_on_no_rank_where_another_could_not_write_its_part():
    completed: list[str] = []
    writer = StateWriter(_WithAnother())
    with pytest.raises(TrainingError, match="rank 1: OSError: disk full"):  # noqa: PT012
        writer.write(lambda: completed.append("state"))
        writer.settle()
    assert not completed


@pytest.fixture
def make_trainer(data, record_group, make_config, model_dir, tmp_path):
    """A trainer of four steps that saves after the second and the last."""
    for number in range(4):
        record_group(f"g{number}", (1.0, 0.0, 0.1 * number, 0.5))

    def make(name: str, **options: object) -> DartGRPOTrainer:
        data.resume("trainer", 0)  # the same groups for each
        output_dir = tmp_path / name / "trainer"
        config = make_config(output_dir=str(output_dir), groups_per_step=1, max_steps=4, save_steps=2, **options)
        return DartGRPOTrainer(model_dir, config, data, checkpoints=tmp_path / name / "checkpoints")

    return make


def hold(monkeypatch, trainer: DartGRPOTrainer) -> list[int]:
    """Let the state after the second step be written once the third is done; returns which were waited for."""
    save, waited = torch.save, []

    def late(value, path, *more, **options):
        if str(path).endswith("checkpoint-2/optimizer.pt"):
            wait_until(lambda: trainer.state.global_step >= 3)
            waited.append(2)
        save(value, path, *more, **options)

    monkeypatch.setattr(torch, "save", late)
    return waited


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="whole"),
        pytest.param({"use_peft": True, "lora_r": 2}, id="adapter", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_and_the_state_is_that_of_its_moment(make_trainer, monkeypatch, tmp_path, options):
    make_trainer("waits", background_states=False, **options).run()
    trainer = make_trainer("beside", **options)
    waited = hold(monkeypatch, trainer)
    trainer.run()
    assert waited == [2]
    assert checkpoint.resume_point(tmp_path / "beside" / "trainer").step == 4, "the end waits for the last state"
    for step in (2, 4):
        left, right = (tmp_path / name / "trainer" / f"checkpoint-{step}" for name in ("waits", "beside"))
        assert {one.name for one in left.iterdir()} == {one.name for one in right.iterdir()}
        weights = next(one.name for one in left.glob("*model.safetensors"))
        assert (left / weights).read_bytes() == (right / weights).read_bytes()
        moments = [torch.load(path / "optimizer.pt")["state"] for path in (left, right)]
        torch.testing.assert_close(*moments, atol=0.0, rtol=0.0)


@pytest.mark.thorough
def test_a_full_disk_ends_the_training_and_leaves_the_state_before(make_trainer, monkeypatch, tmp_path):
    trainer, save = make_trainer("full"), torch.save

    def full(value, path, *more, **options):
        if str(path).endswith("checkpoint-4/optimizer.pt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(value, path, *more, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.run()
    assert checkpoint.resume_point(tmp_path / "full" / "trainer").step == 2
