"""The decisions of the subcommands, apart from what they start."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_agent.policies.oracle_policy import snapped
from dart_gym.core.actions import Click, Press
from dart_gym.core.errors import ConfigurationError, UnknownTaskError
from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.config.run_config import ConfigError, RunConfig, parse_config
from dart_train.config.task_names import check_tasks, expand, expand_rollout, expand_tasks
from dart_train.core.train_errors import CheckpointError
from dart_train.data.manager.data_manager import DataManager
from dart_train.processes import prepare
from dart_train.processes.evaluate_version import planned, policy_seeds, task_steps
from dart_train.processes.learn import ROLLOUTS_ENDED, EndOfData
from dart_train.processes.process_context import ProcessContext, check_model, published
from dart_train.rollout.settings.rollout_config import RolloutConfig
from dart_train.run.run_directory import RunDirectory, RunDirectoryError

SMALL = {
    "hidden_size": 32,
    "layers": 1,
    "heads": 4,
    "intermediate_size": 32,
    "vision_hidden_size": 32,
    "vision_layers": 1,
}
POINTS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=60)


def make_config(**changes) -> RunConfig:
    return parse_config({"name": "r", "rollout": {"tasks": ["fake/click-button"]}, **changes})


def make_context(tmp_path: Path, config: RunConfig) -> ProcessContext:
    run = RunDirectory(tmp_path / "r")
    run.create()
    return ProcessContext(config, run)


# --- prepare ----------------------------------------------------------------------------------------------------


def test_prepare_refuses_a_family_that_our_trainer_does_not_know(tmp_path):
    """Before an engine has loaded it, and before a rollout has been played."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen9_vl"}')
    context = make_context(tmp_path, make_config(model={"path": str(model)}))
    with pytest.raises(ConfigurationError, match="is a qwen9_vl model.*Known are qwen2_vl, qwen2_5_vl, qwen3_vl"):
        prepare.main(context)
    assert not context.run.checkpoint(0).exists()


@pytest.mark.train
def test_prepare_publishes_a_tiny_model_once(tmp_path):
    context = make_context(tmp_path, make_config(model={"path": "tiny", "tiny": SMALL}))
    prepare.main(context)
    weights = (context.run.checkpoint(0) / "model.safetensors").stat()
    prepare.main(context)
    with context.open_data() as data:
        assert [(row.version, row.source) for row in data.checkpoints()] == [(0, "initial")]
    assert (context.run.checkpoint(0) / "model.safetensors").stat() == weights
    assert [path.name for path in context.run.checkpoints.iterdir()] == ["v000000"]


@pytest.mark.train
def test_a_model_of_the_users_is_linked_and_its_images_bounded(tmp_path):
    model = build_tiny_model(tmp_path / "mine", config=TinyModelConfig(**SMALL))
    before = (model / "preprocessor_config.json").read_text()
    agent = {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 9}
    context = make_context(tmp_path, make_config(model={"path": str(model)}, agent=agent))
    prepare.main(context)
    placed = context.run.checkpoint(0)
    assert (placed / "model.safetensors").resolve() == (model / "model.safetensors").resolve()
    spec = VisionSpec.from_dir(placed)
    assert (spec.min_pixels, spec.max_pixels) == (28 * 28 * 4, 28 * 28 * 9)
    assert spec.image_mean == VisionSpec.from_dir(model).image_mean
    assert (model / "preprocessor_config.json").read_text() == before
    from transformers import AutoImageProcessor

    loaded = AutoImageProcessor.from_pretrained(placed)
    assert loaded.size["longest_edge"] == 28 * 28 * 9


@pytest.mark.parametrize(
    ("path", "words"),
    [("no-such-model", "no model 'no-such-model'"), ("{tmp}/half", "has no preprocessor_config.json")],
)
def test_what_is_no_model_is_refused_and_leaves_nothing(tmp_path, path, words):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text("{}")
    target = tmp_path / "checkpoints" / "v000000"
    with pytest.raises((RunDirectoryError, ConfigurationError), match=words):
        prepare.place_model(path.format(tmp=tmp_path), {}, target, seed=0)
    assert list(target.parent.iterdir()) == []


@pytest.mark.train
def test_wrong_settings_of_the_tiny_model_are_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"has no 'hiden_size'; did you mean 'hidden_size'"):
        prepare.place_model("tiny", {"hiden_size": 3}, tmp_path / "v", seed=0)
    with pytest.raises(ConfigurationError, match="min_pixels = 9000000 is above agent.max_pixels"):
        prepare.place_model("tiny", SMALL, tmp_path / "v", seed=0, pixels={"min_pixels": 9_000_000})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_not_whole_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config\.json: restore it"):
        check_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no weights"):
        check_model(tmp_path)
    (tmp_path / "model.safetensors").touch()
    check_model(tmp_path)
    context = make_context(tmp_path, make_config())
    with context.open_data() as data:
        with pytest.raises(CheckpointError, match="no weights are published as version 0 yet"):
            published(data)
        data.publish(4, tmp_path)
        assert published(data).version == published(data, 4).version == 4
        with pytest.raises(CheckpointError, match="version 5"):
            published(data, 5)


# --- tasks ------------------------------------------------------------------------------------------------------


def test_suites_stand_for_their_tasks_once():
    config = make_config(
        rollout={"tasks": [{"id": "fake/*", "max_steps": 7}, {"id": "fake/two-steps", "weight": 3.0}]},
        evaluation={"beside": ["fake/*"]},
        demonstrations={"tasks": ["fake/*"]},
    )
    expanded = expand_tasks(config)
    entries = {entry.id: (entry.weight, entry.max_steps) for entry in expanded.rollout.tasks}
    assert entries == {"fake/click-button": (1.0, 7), "fake/two-steps": (3.0, None)}
    assert expanded.demonstrations.tasks == ("fake/click-button", "fake/two-steps")
    assert expanded.evaluation.beside == ()  # all of them are trained
    assert expand_tasks(expanded) == expanded
    assert expand_rollout(RolloutConfig(tasks=["fake/click-button"])).tasks[0].id == "fake/click-button"


def test_tasks_that_are_not_there_are_named(monkeypatch, tmp_path):
    with pytest.raises(UnknownTaskError, match="did you mean 'fake'"):
        expand(["fak/*"])
    with pytest.raises(ConfigError, match="DART_GYM_OSWORLD"):
        expand(["osworld/*"])
    with pytest.raises(UnknownTaskError, match="did you mean 'fake/click-button'"):
        check_tasks(make_config(evaluation={"beside": ["fake/click-buton"]}))
    check_tasks(make_config(rollout={"tasks": ["osworld/*"]}))  # they may lie on another machine


# --- evaluate ---------------------------------------------------------------------------------------------------


def test_the_plan_of_an_evaluation_is_held_out_and_the_same_every_time():
    config = make_config(
        seed=3,
        rollout={"tasks": [{"id": "fake/a", "max_steps": 2}, "fake/b"], "max_steps": 9},
        evaluation={"episodes": 3, "beside": ["fake/c"], "beside_episodes": 2},
    )
    keys, limits = planned(config), task_steps(config)
    assert keys == planned(config)
    assert [(task, seed, limits.get(task) or config.rollout.max_steps) for task, seed in keys] == [
        ("fake/a", 0, 2), ("fake/a", 1, 2), ("fake/a", 2, 2),
        ("fake/b", 0, 9), ("fake/b", 1, 9), ("fake/b", 2, 9),
        ("fake/c", 0, 9), ("fake/c", 1, 9),
    ]  # fmt: skip
    assert {task for task, _ in planned(config, trained_only=True)} == {"fake/a", "fake/b"}
    assert all(seed < FIRST_TRAINING_SEED for _, seed in keys)
    assert {seed + policy_seeds(config) for _, seed in keys} == {30000, 30001, 30002}


# --- demonstrate ------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 16))
def test_clicks_snap_to_the_nearest_place_of_the_grid(x, y, grid):
    click = snapped(Click(x=x, y=y, button="right"), grid)
    assert click.x % grid == click.y % grid == 0 and click.button == "right"
    assert abs(click.x - x) <= grid / 2 and abs(click.y - y) <= grid / 2
    assert snapped(click, grid) == click


def test_what_is_no_click_at_a_place_stays():
    for action in (Press(keys=("a",)), Click()):
        assert snapped(action, 8) is action


# --- learn ------------------------------------------------------------------------------------------------------


def record_group(data: DataManager, name: str) -> None:
    for number in range(2):
        step = Step((1,), (), (7,), (-0.5,))
        data.record(
            Trajectory(
                "fake/x",
                10_000,
                "",
                "0" * 16,
                f"{name}{number}",
                "r",
                name,
                terminal=TerminalState.DONE,
                score=float(number),
                steps=(step,),
            ),
            expected=2,
        )


def test_the_trainer_ends_once_rollouts_ended_and_too_few_groups_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr("dart_train.processes.learn.LOOK_INTERVAL_S", 0.0)
    context = make_context(tmp_path, make_config())
    with context.open_data() as data:
        ended = EndOfData(context, data, groups=1)
        record_group(data, "g")
        assert not ended()
        data.set_fact(ROLLOUTS_ENDED, True)
        assert not ended()  # there is a group left to train on
        lease = data.lease(1, "trainer")
        assert ended()
        lease.release()
        assert not ended()
        context.stop.set()
        assert ended()


def test_the_trainer_looks_into_the_data_base_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("dart_train.processes.learn.LOOK_INTERVAL_S", 3600.0)
    context = make_context(tmp_path, make_config())
    context.stop = threading.Event()
    with context.open_data() as data:
        ended = EndOfData(context, data, groups=1)
        assert not ended()
        data.set_fact(ROLLOUTS_ENDED, True)
        assert not ended()  # it has looked a moment ago


def test_osworlds_tasks_are_read_from_their_folder(tmp_path, monkeypatch):
    from dart_gym.tasks.osworld.osworld_scenario import load_tasks

    (tmp_path / "chrome").mkdir()
    (tmp_path / "chrome" / "one.json").write_text(json.dumps({"id": "one", "instruction": "Do it"}))
    monkeypatch.setenv("DART_GYM_OSWORLD", str(tmp_path))
    assert [task.id for task in load_tasks()] == ["osworld/one"]
    monkeypatch.setenv("DART_GYM_OSWORLD", str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match="is no folder"):
        load_tasks()
    monkeypatch.delenv("DART_GYM_OSWORLD")
    assert load_tasks() == []
