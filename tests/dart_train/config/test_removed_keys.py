"""A key that was removed is refused with the value that now always holds."""

import copy
from dataclasses import fields

import pytest
import yaml

from dart_gym.core.section import subsection
from dart_train.config.removed_keys import REMOVED
from dart_train.config.run_config import ConfigError, RunConfig, apply_override, dump_config, parse_config
from dart_train.trainer.settings.trainer_section import TrainerConfig

RUN = {"name": "x", "rollout": {"tasks": ["fake/two-steps"]}}


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_names_what_holds(key: str):
    values = copy.deepcopy(RUN)
    apply_override(values, key.split("."), 3)
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert key in str(caught.value) and REMOVED[key] in str(caught.value) and len(str(caught.value).splitlines()) == 2


def test_no_removed_key_is_a_key():
    offered = {".".join(path) for path, field in _fields(RunConfig) if not field.exclude}
    assert offered.isdisjoint(REMOVED)
    parse_config(RUN)


def test_every_constant_is_refused_in_a_file():
    constants = {".".join(path) for path, field in _fields(RunConfig) if field.exclude}
    assert constants and constants <= REMOVED.keys()


def test_a_constant_is_no_part_of_what_is_written_and_keeps_its_value():
    config = parse_config(RUN)
    written = yaml.safe_load(dump_config(config))
    assert "max_backoff_s" not in written["rollout"]["engine"]
    assert parse_config(written) == config and config.rollout.engine.max_backoff_s == 30.0


def _fields(section, path=()):
    for name, field in section.model_fields.items():
        yield (*path, name), field
        below = subsection(field.annotation)
        if below is not None and name != "tasks":
            yield from _fields(below, (*path, name))


def test_inherited_keys_have_the_defaults_of_the_library():
    transformers = pytest.importorskip("transformers")
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig

    ours = RunConfig.model_validate(RUN).trainer
    theirs = {item.name: item.default for item in fields(DartGRPOConfig)}
    names = {item.name for item in fields(transformers.TrainingArguments)} & TrainerConfig.model_fields.keys()
    differ = {name for name in names if getattr(ours, name) != theirs[name] and getattr(ours, name) is not None}
    assert differ <= {"report_to"}
