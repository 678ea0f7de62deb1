from __future__ import annotations

import pytest
from pydantic import ValidationError

from dart_train.rollout.settings.rollout_config import RolloutConfig, TaskEntry


def test_tasks_may_be_ids_or_entries():
    config = RolloutConfig(tasks=["fake/a", {"id": "fake/b", "weight": 2, "max_steps": 3}])
    assert config.tasks == (TaskEntry(id="fake/a"), TaskEntry(id="fake/b", weight=2.0, max_steps=3))
    assert RolloutConfig(tasks="fake/a").tasks[0].id == "fake/a"
    assert RolloutConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_stream_goes_to_vllm_servers():
    for engine in ({"kind": "vllm"}, {"urls": ["http://a:1", "https://b"]}):
        config = RolloutConfig.model_validate({"tasks": ["a"], "engine": engine, "sync": {"transfer": "nccl"}})
        assert config.sync.transfer == "nccl"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tasks": ["a", "a"]}, "use `weight`"),
        ({"tasks": []}, "at least 1"),
        ({"tasks": ["a"], "worker": 3}, "worker"),
        ({"tasks": ["a"], "engine": {"top_p": 0.9}}, "top_p"),
        ({"tasks": [{"id": "a", "weight": 0}]}, "greater than 0"),
        ({"tasks": ["a"], "group_size": 0}, "greater than or equal to 1"),
        ({"tasks": ["a"], "sync": {"transfer": "nccl"}}, "nccl is for vLLM servers, not for engine.kind transformers"),
        (
            {"tasks": ["a"], "sync": {"transfer": "tcp"}, "engine": {"urls": ["ws://a:1"]}},
            "not for ws://a:1: use files",
        ),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        RolloutConfig.model_validate(values)
