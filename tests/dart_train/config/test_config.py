import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.errors import ConfigurationError
from dart_train.config.run_config import (
    AgentConfig,
    ConfigError,
    apply_override,
    dump_config,
    load_config,
    parse_config,
)

MINIMAL = {"name": "x", "rollout": {"tasks": ["fake/click-button"]}}


def test_minimal_configuration_has_defaults():
    config = parse_config(MINIMAL)
    assert config.train_tasks == ("fake/click-button",)
    assert config.data.curation.group_size == config.rollout.group_size


def test_resolved_configuration_reads_back_as_itself(tmp_path):
    config = parse_config({**MINIMAL, "trainer": {"learning_rate": 1e-3}})
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rolout": {}}, ["rolout", "did you mean 'rollout'"]),
        ({"rollout": {"tasks": ["a"], "workerz": 3}}, ["rollout.workerz", "did you mean 'workers'"]),
        ({"rollout": {"tasks": ["a"], "workers": "many"}}, ["rollout.workers", "integer"]),
        ({"rollout": {"tasks": ["a"], "workers": 0}}, ["rollout.workers", "greater than or equal to 1"]),
        ({"trainer": {"learning_rat": 1}}, ["trainer.learning_rat", "did you mean 'learning_rate'"]),
        ({"data": {"curation": {"max_stalenes": 1}}}, ["data.curation.max_stalenes", "did you mean 'max_staleness'"]),
        ({"name": "../up"}, ["name"]),
        (
            {"trainer": {"temperature": 0.7}},
            ["trainer.temperature is 0.7 and rollout.sampling.temperature is 1.0"],
        ),
        ({"data": {"curation": {"group_size": 4}}}, ["data.curation.group_size is 4", "set rollout.group_size only"]),
        ({"rollout": {"tasks": ["a"], "sampling": {"temperature": 0}}}, ["temperature must be above 0"]),
        ({"rollout": {"tasks": ["a"], "engine": {"images": 5}}}, ["set agent.screenshots only"]),
        ({"trainer": {"loss_type": "grp"}}, ["trainer: loss_type: unknown loss 'grp'", "'grpo'"]),
        ({"trainer": {"delta": 1.1}}, ["trainer: delta=1.1 must be above"]),
        ({"trainer": {"eval_steps": 5}}, ["trainer.eval_steps: unknown key"]),
        ({"trainer": {"weight_decay": "much"}}, ["trainer.weight_decay: input should be a valid number"]),
        ({"demonstrations": {"grid": 0}}, ["grid"]),
    ],
)
def test_mistakes_are_named(change, words):
    with pytest.raises(ConfigError) as caught:
        parse_config({**MINIMAL, **change})
    for word in words:
        assert word in str(caught.value)


def test_what_two_sections_need_is_set_once(tmp_path):
    rollout = {"tasks": ["a"], "group_size": 4, "workers": 3, "sampling": {"temperature": 0.7, "max_tokens": 9}}
    config = parse_config({"name": "x", "seed": 5, "rollout": rollout, "trainer": {"groups_per_step": 2}})
    assert (config.trainer.temperature, config.trainer.max_completion_length, config.rollout.seed) == (0.7, 9, 5)
    assert (config.data.curation.group_size, config.data.curation.batch_groups) == (4, 2)
    assert (config.cluster.desktops, config.evaluation.temperature) == (3, 0.7)
    assert config.trainer.given()["temperature"] == 0.7
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


def test_reading_a_configuration_imports_neither_torch_nor_a_database():
    heavy = {"torch", "transformers", "sqlalchemy"}
    code = f"import sys, dart_train.config.run_config; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("tiny", "words"),
    [
        ({"hiden_size": 3}, r"model\.tiny: .*no 'hiden_size'; did you mean 'hidden_size'"),
        ({"layers": "many"}, r"model\.tiny: layers: .*valid integer.*'many'"),
        ({"hidden_size": 60}, r"model\.tiny: hidden_size must be a multiple of 8"),
    ],
)
def test_wrong_settings_of_the_tiny_model_are_found_when_the_configuration_is_read(tiny, words):
    with pytest.raises(ConfigError, match=words):
        parse_config({"name": "a", "rollout": {"tasks": ["fake/two-steps"]}, "model": {"tiny": tiny}})


def test_missing_file_lists_what_there_is(tmp_path):
    (tmp_path / "there.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match=r"no configuration .*there\.yaml"):
        load_config(tmp_path / "gone.yaml")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "3"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_config(path)


def test_overrides_reach_nested_keys(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    config = load_config(path, ["rollout.workers=2", "seed=7", "trainer.learning_rate=0.1"])
    assert (config.rollout.workers, config.seed, config.trainer.learning_rate) == (2, 7, 0.1)


@pytest.mark.parametrize("item", ["rollout.workers", "=3", "name.sub=1"])
def test_bad_overrides_are_refused(tmp_path, item):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    with pytest.raises(ConfigError):
        load_config(path, [item])


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers())
def test_an_override_is_found_where_it_was_put(keys, value):
    values: dict = {}
    apply_override(values, keys, value)
    for key in keys:
        values = values[key]
    assert values == value


def test_a_token_is_asked_for_only_where_a_cluster_is_given(monkeypatch):
    monkeypatch.delenv("X_TOKEN", raising=False)
    assert parse_config({**MINIMAL, "cluster": {"token_env": "X_TOKEN"}}).cluster.token() is None
    elsewhere = parse_config({**MINIMAL, "cluster": {"url": "ws://host:1", "token_env": "X_TOKEN"}}).cluster
    with pytest.raises(ConfigError, match="X_TOKEN is not set"):
        elsewhere.token()
    monkeypatch.setenv("X_TOKEN", "secret")
    assert elsewhere.token() == "secret"


def test_a_preset_sets_what_it_fixes_and_leaves_the_rest():
    agent = AgentConfig.parse({"preset": "qwen3-vl", "texts": 2})
    assert (agent.style, agent.format, agent.screenshots, agent.texts) == ("preset", "qwen:3", 5, 2)
    with pytest.raises(ConfigurationError, match="unknown preset 'qwen4'"):
        AgentConfig.parse({"preset": "qwen4"})
