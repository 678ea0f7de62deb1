"""Steps that no cutting makes small enough are dropped by name; a step that fits remains, or the run ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dart_train.core.train_errors import OutOfMemory, TrainingError
from dart_train.trainer.batches.optimizer_batch import MiniBatch
from dart_train.trainer.memory.rank_memory import NCCL_BYTES, usable_bytes
from dart_train.trainer.memory.remembered_limits import FILE, RememberedLimits
from dart_train.trainer.step_runner import SHORTER, StepRunner
from dart_train.trainer.weights.ranks import ALONE

pytestmark = pytest.mark.train


def runner(samples, **values) -> StepRunner:
    found = StepRunner.__new__(StepRunner)
    part = MiniBatch(list(samples), SimpleNamespace(), **values)
    found._ranks, found._work = ALONE, SimpleNamespace()
    found._memory = SimpleNamespace(explained=lambda running: "this rank takes much")
    found.batch = SimpleNamespace(parts=[part], metrics={"dropped/too_long": 0.0}, scored=True, micro_batches=[])
    found.iteration = 1
    return found


def test_the_longest_are_dropped_counted_and_said(samples, caplog):
    longest = max(sample.length for sample in samples)
    known = {place: torch.full((1,), float(place)) for place in range(len(samples))}
    steps = runner(samples, old_logprobs=dict(known), kept={place: torch.ones(()).bool() for place in known})
    bound = steps._leave_out_longest(longest, 2 * longest, "out of memory")
    (part,) = steps.batch.parts
    left = [place for place, sample in enumerate(samples) if sample.length <= bound]
    assert bound == int(SHORTER * longest) and 0 < len(left) < len(samples)
    assert part.samples == [samples[place] for place in left]
    assert [float(part.old_logprobs[new]) for new in range(len(left))] == left, "what is known stays with its sample"
    assert part.kept.keys() == set(range(len(left)))
    assert steps.batch.metrics["dropped/too_long"] == len(samples) - len(left)
    assert "too_long" in caplog.text and "this rank takes much" in caplog.text


def test_a_part_without_any_left_runs_one_that_counts_nothing(samples):
    short = min(samples, key=lambda sample: sample.length)
    steps = runner([sample for sample in samples if sample.length > 2 * short.length] or samples[:1])
    steps.batch.parts.append(MiniBatch([short], SimpleNamespace()))
    longest = max(sample.length for part in steps.batch.parts for sample in part.samples)
    for _ in range(40):
        if len(steps.batch.parts[0].samples) == 1 and steps.batch.parts[0].samples[0].weight == 0.0:
            break
        longest = steps._leave_out_longest(longest, 2 * longest, "out of memory")
    (filler,) = steps.batch.parts[0].samples
    assert filler.weight == 0.0 and filler.length == short.length


def test_where_none_is_shorter_the_run_ends_with_advice(samples):
    short = min(samples, key=lambda sample: sample.length)
    steps = runner([short, short])
    with pytest.raises(TrainingError, match="larger device"):
        steps._leave_out_longest(short.length, 2 * short.length, "out of memory")


def test_what_did_not_fit_in_a_life_before_is_dropped_at_once(samples, tmp_path):
    longest = max(sample.length for sample in samples)
    RememberedLimits(tmp_path / FILE).lower(longest - 1, longest - 1)
    RememberedLimits(tmp_path / FILE, longest - 1, longest - 1).lower(longest // 2, None)
    limits = RememberedLimits.shared(tmp_path, ALONE)
    assert (limits.micro_batch_tokens, limits.longest) == (longest // 2, longest - 1), "a bound stays"
    steps = runner(samples)
    steps._limits, steps.collator, steps._max_tokens, cut = limits, None, longest // 2, []
    steps.batch.split = lambda collator, tokens, ranks: cut.append(tokens)
    steps._leave_out_known()
    assert steps.batch.metrics["dropped/too_long"] == sum(sample.length == longest for sample in samples)
    assert max(sample.length for sample in steps.batch.parts[0].samples) < longest and cut == [longest // 2]
    steps._leave_out_known()
    assert cut == [longest // 2], "nothing is left to drop"


def test_out_of_memory_with_fsdp_is_no_hopeless_error(samples, tmp_path):
    longest = max(sample.length for sample in samples)
    steps = runner(samples)
    steps._limits, steps._max_tokens = RememberedLimits.shared(tmp_path, ALONE), longest
    error = steps._next_life_makes_it(torch.OutOfMemoryError("CUDA out of memory"))
    assert isinstance(error, OutOfMemory) and not error.hopeless and "too_long" in str(error)
    again = RememberedLimits.shared(tmp_path, ALONE)
    assert again.longest == again.micro_batch_tokens == int(SHORTER * longest)
    again.path.write_text("{}")
    with pytest.raises(TrainingError, match="is damaged"):
        RememberedLimits.shared(tmp_path, ALONE)


def test_a_device_has_room_for_what_torch_does_not_count():
    whole = 80 << 30
    assert usable_bytes(whole, 1) - usable_bytes(whole, 2) == NCCL_BYTES and usable_bytes(whole, 1) < whole
