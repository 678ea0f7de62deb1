"""A key that was removed is refused with the value that now always holds."""

from dataclasses import fields

import pytest

from dart_train.config.removed_keys import REMOVED
from dart_train.config.run_config import ConfigError, RunConfig, parse_config
from dart_train.trainer.settings.trainer_section import TrainerConfig

RUN = {"name": "x", "rollout": {"tasks": ["fake/two-steps"]}}


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_names_what_holds(key: str):
    section, name = key.split(".")
    with pytest.raises(ConfigError) as caught:
        parse_config({**RUN, section: {**RUN.get(section, {}), name: 3}})
    assert key in str(caught.value) and REMOVED[key] in str(caught.value) and len(str(caught.value).splitlines()) == 2


def test_no_removed_key_is_a_key():
    for key in REMOVED:
        section, name = key.split(".")
        assert name not in type(getattr(RunConfig.model_validate(RUN), section)).model_fields, key
    parse_config(RUN)


def test_inherited_keys_have_the_defaults_of_the_library():
    transformers = pytest.importorskip("transformers")
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig

    ours = RunConfig.model_validate(RUN).trainer
    theirs = {item.name: item.default for item in fields(DartGRPOConfig)}
    names = {item.name for item in fields(transformers.TrainingArguments)} & TrainerConfig.model_fields.keys()
    differ = {name for name in names if getattr(ours, name) != theirs[name] and getattr(ours, name) is not None}
    assert differ <= {"report_to"}
