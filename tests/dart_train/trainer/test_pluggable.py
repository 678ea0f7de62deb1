"""Another trainer in the place of `DartGRPOTrainer`, and the example of one, also as a script of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dart_gym.core.errors import PluginError
from dart_train.config.run_config import ConfigError, parse_config
from dart_train.core.fingerprint import Fingerprint, read_fingerprint
from dart_train.core.metrics_log import read_metrics
from dart_train.launch.pipeline import open_run
from dart_train.processes import learn
from dart_train.processes.learn import ROLLOUTS_ENDED
from dart_train.processes.process_context import ProcessContext, open_data
from dart_train.trainer.grpo_trainer import load_model
from dart_train.trainer.settings.grpo_settings import GRPOSettings
from dart_train.trainer.settings.trainer_section import TRAINERS
from dart_train.trainer.trainer_loop import run_trainer
from dart_train.trainer.weights import checkpoint
from dart_train.trainer.weights.fingerprint_probe import fingerprint_of

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def reinforce(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    return TRAINERS.get("reinforce:Reinforce")


def test_the_example_is_short():
    assert len((EXAMPLES / "reinforce.py").read_text().splitlines()) <= 60


def test_reinforce_in_the_trainers_place(reinforce, data, record_group, model_dir, tmp_path):
    for key in "abcde":
        record_group(key)
    data.publish(0, model_dir, "initial")
    config = GRPOSettings(groups_per_step=1, max_steps=3, publish_steps=2)
    trainer = reinforce(model_dir, data, learning_rate=1e-3)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-3
    done = run_trainer(trainer, data, config, model_dir=model_dir, checkpoints=tmp_path / "checkpoints")
    assert done == 3
    assert {state: count for state, count in data.counts().items() if count} == {"trained": 12, "recorded": 8}
    assert [(row.version, row.source) for row in data.checkpoints()][:2] == [(2, "training"), (1, "training")]
    newest = data.newest_checkpoint()
    assert checkpoint.contained_lease(newest.path) == 3
    assert torch.equal(load_model(newest.path).lm_head.weight, trainer.model.lm_head.weight)


def test_what_only_lost_weights_contained_is_trained_again(reinforce, data, record_group, model_dir, tmp_path):
    for key in "abcd":
        record_group(key)
    data.publish(0, model_dir, "initial")

    class Failing(reinforce):
        def train(self, groups):
            if groups.serial == 4:
                raise RuntimeError("the power is gone")
            return super().train(groups)

    config = GRPOSettings(groups_per_step=1, publish_steps=2)
    places = {"model_dir": model_dir, "checkpoints": tmp_path / "checkpoints"}
    with pytest.raises(RuntimeError, match="power"):
        run_trainer(Failing(model_dir, data), data, config, **places)
    assert data.counts()["trained"] == 12 and data.ready()[0] == 1
    newest = Path(data.newest_checkpoint().path)  # of the first two leases
    places["model_dir"] = newest
    done = run_trainer(reinforce(newest, data), data, config, **places, stop=lambda: data.ready()[0] == 0)
    assert done == 2 and data.counts()["trained"] == 16
    assert {row.trajectory_id: row for row in data.trajectories()} and not data.counts().get("leased")


@pytest.mark.train
def test_versions_carry_the_fingerprint_of_what_was_written(reinforce, data, record_group, model_dir, tmp_path):
    """Also where `save` knows nothing of fingerprints, or brings that of other weights along."""
    record_group("a")
    data.publish(0, model_dir, "initial")

    class Plain(reinforce):
        def save(self, path):
            self.model.save_pretrained(path)
            Fingerprint(((1,),), ((1,),), ((-9.0,),), ()).write(path)

    config = GRPOSettings(groups_per_step=1, max_steps=1)
    trainer = Plain(model_dir, data, learning_rate=1e-2)
    run_trainer(trainer, data, config, model_dir=model_dir, checkpoints=tmp_path / "checkpoints")
    published = read_fingerprint(data.newest_checkpoint().path)
    assert published == fingerprint_of(trainer.model, model_dir)
    assert published.logprobs != fingerprint_of(load_model(model_dir), model_dir).logprobs


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.process
def test_the_example_runs_on_its_own(data, record_group, model_dir, tmp_path):
    for key in "abcd":
        record_group(key)
    root = tmp_path.rename(tmp_path.with_name("run"))
    command = [sys.executable, str(EXAMPLES / "reinforce.py"), str(root), str(model_dir), str(root / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=EXAMPLES.parent)
    assert done.returncode == 0, done.stderr
    rows = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert [row["samples"] for row in rows] == [8.0, 8.0]
    assert not torch.equal(load_model(root / "out").lm_head.weight, load_model(model_dir).lm_head.weight)


@pytest.mark.thorough
@pytest.mark.process
def test_the_command_takes_a_class(reinforce, record_into, model_dir, tmp_path):
    """`trainer.kind`: `trainer.options` go to the class, and it ends with the data."""
    config = {
        "name": "run",
        "rollout": {"tasks": ["fake/two-steps"], "group_size": 4},
        "data": {"curation": {"max_staleness": None}},
        "trainer": {"kind": "reinforce:Reinforce", "groups_per_step": 1, "options": {"learning_rate": 1e-3}},
    }
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(config))
    run = open_run(parse_config(config), tmp_path)
    with open_data(parse_config(config), run) as data:
        data.publish(0, model_dir, "initial")
        for key in "abc":
            record_into(data, key)
        data.set_fact(ROLLOUTS_ENDED, True)
        command = [sys.executable, "-m", "dart_train", "process", str(file), "learn", "--runs-dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=EXAMPLES)
        assert done.returncode == 0, done.stderr
        assert {state: count for state, count in data.counts().items() if count} == {"trained": 12}
        assert data.newest_checkpoint().version == 3
    assert [row["step"] for row in read_metrics(run.metrics("trainer"))] == [1, 2, 3]
    config["trainer"]["options"]["beta"] = 0.1
    with pytest.raises(ConfigError, match="reinforce:Reinforce does not take these settings"):
        learn.learn_with(ProcessContext(parse_config(config), run))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("reinforce", "unknown trainer 'reinforce'.*module:Class"),
        ("no_such_module:Trainer", "run from its directory or install"),
        ("json:Trainer", "has no Trainer"),
        ("json:JSONDecoder", "lacks train and save"),
    ],
)
def test_a_class_that_cannot_be_used_is_explained(name, words):
    with pytest.raises(PluginError, match=words):
        TRAINERS.get(name)
