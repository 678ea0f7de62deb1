"""The monitor's decisions, the copy of the best version, and how training and rolling out end by them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dart_gym.core.errors import ConfigurationError
from dart_train.config.run_config import ConfigError, load_config
from dart_train.core.metrics_log import MetricsLog
from dart_train.processes.learn import STOP_TRAINING, EndOfData
from dart_train.processes.monitor import best_of, copy_version, hold, main, out_of_patience
from dart_train.processes.process_context import ProcessContext
from dart_train.processes.rollout import seconds_left
from dart_train.run.run_directory import RunDirectory

CONFIG = Path(__file__).parents[1] / "e2e.yaml"


def rows(*successes):
    return [{"version": number, "rollouts": 10 * number, "success": value} for number, value in enumerate(successes)]


def test_the_best_is_the_earliest_of_equals_and_patience_counts_from_it():
    seen = rows(0.2, 0.6, 0.5, 0.6)
    assert best_of(seen)["version"] == 1
    assert out_of_patience(seen, 2) and not out_of_patience(seen, 3) and not out_of_patience(seen, None)
    assert not out_of_patience(rows(0.1, 0.2, 0.3), 1)


def test_the_best_version_outlives_its_original_and_is_replaced_whole(tmp_path):
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "weights").write_text(str(number))
    best = tmp_path / "best"
    copy_version(tmp_path / "v1", best)
    assert os.path.samefile(best / "weights", tmp_path / "v1" / "weights"), "it takes no space of its own"
    (tmp_path / "v1" / "weights").unlink()
    assert (best / "weights").read_text() == "1"
    copy_version(tmp_path / "v2", best)
    assert (best / "weights").read_text() == "2" and sorted(os.listdir(tmp_path)) == ["best", "v1", "v2"]


def test_what_is_evaluated_stays_when_the_trainer_removes_it(tmp_path):
    def version(number):
        path = tmp_path / f"v{number}"
        if number in present:
            path.mkdir(exist_ok=True)
            (path / "weights").write_text(str(number))
        return SimpleNamespace(version=number, path=str(path))

    present, found = {1, 3}, iter((1, 2, 3, 3))
    number, held = hold(lambda: version(next(found)), tmp_path / ".held")
    shutil.rmtree(tmp_path / "v1")
    assert number == 1 and (held / "weights").read_text() == "1"
    number, newer = hold(lambda: version(next(found)), tmp_path / ".held")  # 2 is gone before it can be copied
    assert number == 3 and (newer / "weights").read_text() == "3" and not held.exists() and newer.parent == held.parent
    with pytest.raises(FileNotFoundError):
        hold(lambda: version(4), tmp_path / ".held")


def test_training_ends_when_the_monitor_says_so(tmp_path):
    run = RunDirectory(tmp_path / "e2e")
    run.create()
    context = ProcessContext(load_config(CONFIG), run)
    with context.open_data() as data:
        assert not EndOfData(context, data, 1)()
        data.set_fact(STOP_TRAINING, True)
        assert EndOfData(context, data, 1)()


def test_a_monitor_by_hand_needs_to_know_when(tmp_path):
    """Without the number it would evaluate the same version over and over."""
    config = load_config(CONFIG, ["evaluation.monitor.every_rollouts=null"])
    with pytest.raises(ConfigurationError, match="evaluation.monitor.every_rollouts is not set"):
        main(ProcessContext(config, RunDirectory(tmp_path / "run")))


def test_minutes_of_rolling_out_count_over_restarts(tmp_path):
    config, run = load_config(CONFIG, ["rollout.budget_minutes=2"]).rollout, RunDirectory(tmp_path)
    assert seconds_left(config, run) == 120
    log = MetricsLog(run.metrics("rollout"))
    for _ in range(30):
        log.write(rollouts=1)
    log.close()
    assert seconds_left(config, run) == 90 and seconds_left(load_config(CONFIG).rollout, run) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["evaluation.final=best"], "evaluation.final best needs evaluation.monitor.every_rollouts"),
        (
            ["evaluation.monitor.every_rollouts=10", "rollout.engine.urls=['ws://127.0.0.1:1']"],
            "loads versions into an engine of its own",
        ),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(CONFIG, settings)


def test_the_monitor_has_desktops_beside_those_of_the_rollouts(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("name: c\nrollout: {tasks: [fake/two-steps], workers: 3}\n")
    assert load_config(path).cluster.desktops == 3
    assert load_config(path, ["evaluation.monitor={every_rollouts: 10, workers: 2}"]).cluster.desktops == 5
