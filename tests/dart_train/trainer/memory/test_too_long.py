"""Steps that no cutting makes small enough are dropped by name; a step that fits remains, or the run ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dart_train.core.train_errors import OutOfMemory, TrainingError
from dart_train.trainer.batches.optimizer_batch import MiniBatch, OptimizerBatch
from dart_train.trainer.memory.rank_memory import NCCL_BYTES, usable_bytes
from dart_train.trainer.memory.remembered_limits import FILE, RememberedLimits
from dart_train.trainer.memory.too_long import (
    SHORTER,
    for_the_next_life,
    leave_out_known,
    leave_out_longest,
    longest_step,
)
from dart_train.trainer.weights.ranks import ALONE

pytestmark = pytest.mark.train


def explain() -> str:
    return "this rank takes much"


def batch_of(*parts: MiniBatch) -> OptimizerBatch:
    return OptimizerBatch(parts=list(parts), metrics={"dropped/too_long": 0.0}, trajectory_ids=())


def drop_longest(batch: OptimizerBatch, longest: int) -> int:
    return leave_out_longest(batch, longest, 2 * longest, ALONE, why="out of memory", explain=explain)


def test_the_longest_are_dropped_counted_and_said(samples, caplog):
    longest = max(sample.length for sample in samples)
    known = {place: torch.full((1,), float(place)) for place in range(len(samples))}
    kept = {place: torch.ones(()).bool() for place in known}
    part = MiniBatch(list(samples), SimpleNamespace(), old_logprobs=dict(known), kept=kept)
    batch = batch_of(part)
    bound = drop_longest(batch, longest)
    left = [place for place, sample in enumerate(samples) if sample.length <= bound]
    assert bound == int(SHORTER * longest) and 0 < len(left) < len(samples)
    assert part.samples == [samples[place] for place in left]
    assert [float(part.old_logprobs[new]) for new in range(len(left))] == left, "what is known stays with its sample"
    assert part.kept.keys() == set(range(len(left)))
    assert batch.metrics["dropped/too_long"] == len(samples) - len(left)
    assert "too_long" in caplog.text and "this rank takes much" in caplog.text


def test_a_part_without_any_left_runs_one_that_counts_nothing(samples):
    short = min(samples, key=lambda sample: sample.length)
    long = [sample for sample in samples if sample.length > 2 * short.length] or samples[:1]
    batch = batch_of(MiniBatch(list(long), SimpleNamespace()), MiniBatch([short], SimpleNamespace()))
    longest = longest_step(batch)
    for _ in range(40):
        if len(batch.parts[0].samples) == 1 and batch.parts[0].samples[0].weight == 0.0:
            break
        longest = drop_longest(batch, longest)
    (filler,) = batch.parts[0].samples
    assert filler.weight == 0.0 and filler.length == short.length


def test_where_none_is_shorter_the_run_ends_with_advice(samples):
    short = min(samples, key=lambda sample: sample.length)
    with pytest.raises(TrainingError, match="this rank takes much, or take a larger device"):
        drop_longest(batch_of(MiniBatch([short, short], SimpleNamespace())), short.length)


def test_what_did_not_fit_in_a_life_before_is_dropped_at_once(samples, tmp_path):
    longest = max(sample.length for sample in samples)
    RememberedLimits(tmp_path / FILE).lower(longest - 1, longest - 1)
    RememberedLimits(tmp_path / FILE, longest - 1, longest - 1).lower(longest // 2, None)
    limits = RememberedLimits.shared(tmp_path, ALONE)
    assert (limits.micro_batch_tokens, limits.longest) == (longest // 2, longest - 1), "a bound stays"
    batch = batch_of(MiniBatch(list(samples), SimpleNamespace()))
    assert leave_out_known(batch, limits, ALONE, explain)
    assert batch.metrics["dropped/too_long"] == sum(sample.length == longest for sample in samples)
    assert longest_step(batch) < longest
    assert not leave_out_known(batch, limits, ALONE, explain), "nothing is left to drop"
    assert not leave_out_known(batch, None, ALONE, explain)


def test_out_of_memory_with_fsdp_is_no_hopeless_error(tmp_path):
    longest = 100
    error = for_the_next_life(longest, longest, RememberedLimits.shared(tmp_path, ALONE), explain)
    assert isinstance(error, OutOfMemory) and not error.hopeless and "too_long" in str(error)
    again = RememberedLimits.shared(tmp_path, ALONE)
    assert again.longest == again.micro_batch_tokens == int(SHORTER * longest)
    error = for_the_next_life(longest, 4 * longest, again, explain)
    assert "too_long" not in str(error), "half of it has room for the longest step"
    assert for_the_next_life(longest, longest, None, explain).hopeless
    again.path.write_text("{}")
    with pytest.raises(TrainingError, match="is damaged"):
        RememberedLimits.shared(tmp_path, ALONE)


def test_a_device_has_room_for_what_torch_does_not_count():
    whole = 80 << 30
    assert usable_bytes(whole, 1) - usable_bytes(whole, 2) == NCCL_BYTES and usable_bytes(whole, 1) < whole
