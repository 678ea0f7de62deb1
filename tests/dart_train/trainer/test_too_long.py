"""Steps that no cutting makes small enough are dropped by name; a step that fits remains, or the run ends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.mini_batch import MiniBatch
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
