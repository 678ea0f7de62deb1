"""A resumed run may have other budgets, limits and learning rates; what defines it may not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_train.config.resume_changes import CHANGEABLE, changes, may_change, record, recorded
from dart_train.config.run_config import RunConfig, load_config
from dart_train.launch.pipeline import open_run
from dart_train.run.run_directory import RunDirectoryError

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def load(*overrides: str) -> RunConfig:
    return load_config(QUICKSTART, list(overrides))


ADVISED = (
    "trainer.learning_rate=1e-7", "trainer.micro_batch_tokens=512", "trainer.device_memory_mb=900",
    "trainer.gradient_checkpointing=true", "trainer.image_features_mb=16", "trainer.image_cache_mb=64",
    "trainer.on_collapse=return", "trainer.max_steps=7", "rollout.workers=2", "rollout.engine.options.threads=3",
    "data.curation.max_staleness=9", "trainer.publish_steps=3",
    "trainer.report_to=[none]", "evaluation.monitor.every_rollouts=50", "resources.engine_memory=0.5",
    "cluster.warm=2", "trainer.stop_on=[signal]", "resources.trainer_ranks=3", "rollout.engine.replicas=3",
)  # fmt: skip
"""Keys that error messages name as a remedy, and others that users change in the middle of a run."""


@pytest.mark.parametrize("override", ADVISED)
def test_a_run_is_resumed_with_another_value(override, tmp_path):
    before, after = load(), load(override)
    run = open_run(before, tmp_path)
    open_run(after, tmp_path)
    found = dict((change.key, change.after) for _, change in recorded(run.changes))
    assert override.partition("=")[0] in found
    assert load_config(run.config) == after
    open_run(after, tmp_path)  # nothing is changed now
    assert len(recorded(run.changes)) == len(found)


@pytest.mark.parametrize(
    "override",
    ["seed=2", "rollout.group_size=4", "trainer.beta=0.5", "agent.screenshots=2", "trainer.loss_type=dr_grpo",
     "rollout.tasks=[miniwob/click-test]", "evaluation.episodes=3"],
)  # fmt: skip
def test_what_defines_a_run_is_refused_by_name(override, tmp_path):
    run = open_run(load(), tmp_path)
    text = run.config.read_text()
    with pytest.raises(RunDirectoryError) as caught:
        open_run(load(override, "trainer.learning_rate=1e-7"), tmp_path)
    assert override.partition("=")[0] in str(caught.value)
    assert run.config.read_text() == text and not run.changes.exists()


def test_every_pattern_names_a_key_that_there_is():
    keys = list(_keys(load().model_dump(mode="json")))
    for patterns in CHANGEABLE.values():
        for pattern in patterns:
            root = pattern.partition("*")[0]
            assert any(key.startswith(root) for key in keys), pattern
    assert may_change("resources.trainer_ranks") and not may_change("rollout.engine.images")


def test_changes_are_recorded_with_their_life(tmp_path):
    found = changes(load(), load("trainer.max_steps=7"))
    record(tmp_path / "changes.jsonl", found, 2)
    assert recorded(tmp_path / "changes.jsonl") == [(2, found[0])] and "max_steps" in str(found[0])


def _keys(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
