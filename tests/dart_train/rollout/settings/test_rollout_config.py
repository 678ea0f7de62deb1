from __future__ import annotations

import pytest
from pydantic import ValidationError

from dart_train.rollout.settings.rollout_config import RolloutConfig, TaskEntry


def test_tasks_may_be_ids_or_entries():
    config = RolloutConfig(tasks=["fake/a", {"id": "fake/b", "weight": 2, "max_steps": 3}])
    assert config.tasks == (TaskEntry(id="fake/a"), TaskEntry(id="fake/b", weight=2.0, max_steps=3))
    assert RolloutConfig(tasks="fake/a").tasks[0].id == "fake/a"
    assert RolloutConfig.model_validate(config.model_dump(mode="json")) == config


def test_the_options_of_an_engine_are_resolved_with_their_defaults():
    config = RolloutConfig.model_validate({"tasks": ["a"], "engine": {"options": {"threads": 3}}})
    assert config.engine.options == {"threads": 3, "max_batch": 32}
    [(kind, url)] = config.engine.servers()
    assert (kind.threads, url) == (3, "")


def test_an_address_is_of_the_kind_that_is_named_where_that_has_its_scheme():
    engine = {"kind": "vllm", "options": {"model": "big"}, "urls": ["http://a:1", "ws://b:1"]}
    servers = RolloutConfig.model_validate({"tasks": ["a"], "engine": engine}).engine.servers()
    assert [(type(kind).__name__, url) for kind, url in servers] == [
        ("VLLMServer", "http://a:1"),
        ("TransformersServer", "ws://b:1"),
    ]
    assert servers[0][0].model == "big"


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
        ({"tasks": ["a"], "engine": {"kind": "vlm"}}, "unknown engine 'vlm'; did you mean 'vllm'"),
        ({"tasks": ["a"], "engine": {"kind": "no_such:Kind"}}, "'no_such:Kind' cannot be imported"),
        ({"tasks": ["a"], "engine": {"kind": "pathlib:Path"}}, "is not a subclass of EngineKind"),
        (
            {"tasks": ["a"], "engine": {"options": {"thread": 2}}},
            "options.thread: unknown key; did you mean 'threads'",
        ),
        ({"tasks": ["a"], "engine": {"options": {"threads": 0}}}, "options.threads: .*greater than or equal to 1"),
        ({"tasks": ["a"], "engine": {"urls": ["tcp://a:1"]}}, "is no address of an engine"),
        ({"tasks": [{"id": "a", "weight": 0}]}, "greater than 0"),
        ({"tasks": ["a"], "group_size": 0}, "greater than or equal to 1"),
        ({"tasks": ["a"], "sync": {"transfer": "nccl"}}, "nccl is not for engine.kind transformers, which takes files"),
        ({"tasks": ["a"], "sync": {"transfer": "adapter"}}, "adapter is not for engine.kind transformers"),
        (
            {"tasks": ["a"], "sync": {"transfer": "tcp"}, "engine": {"urls": ["ws://a:1"]}},
            "tcp is not for ws://a:1, which takes files",
        ),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        RolloutConfig.model_validate(values)
