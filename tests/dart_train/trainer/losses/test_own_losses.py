"""A loss and an advantage of one's own: by module:Class or as an installed package, in every process that trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dart_train.config.run_config import parse_config
from dart_train.core.metrics_log import read_metrics
from dart_train.launch.pipeline import open_run
from dart_train.processes.learn import ROLLOUTS_ENDED
from dart_train.processes.process_context import open_data
from dart_train.trainer import losses
from tests.helpers.packages import install

pytestmark = pytest.mark.train

SOURCE = '''
from dataclasses import dataclass

import numpy as np
import torch

from dart_train.trainer import losses


@dataclass(frozen=True)
class Spread(losses.Loss):
    """L = -A rho + c (rho - 1)^2."""

    c: float
    epsilon: float = 0.0
    ratio_level = "sequence"
    aggregate = staticmethod(losses.token_mean)

    def __call__(self, terms):
        return -terms.advantages * terms.ratio + self.c * (terms.ratio - 1).square()

    def statistics(self, terms):
        values = {"own/c": self.c, "own/epsilon": self.epsilon}
        return {name: torch.full_like(terms.ratio, value) for name, value in values.items()}


class LastStep:
    """Only the last step of an episode gets what it earned above the group's mean."""

    def __call__(self, group):
        gains = group.rewards - group.rewards.mean()
        return [np.append(np.zeros(len(own) - 1), gain) for own, gain in zip(group.steps, gains)]
'''


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path with a module and a package that announces what is in it."""
    place = tmp_path / "mine"
    place.mkdir()
    points = {"dart_gui.losses": {"spread": "my_losses:Spread"}, "dart_gui.advantages": {"last": "my_losses:LastStep"}}
    install(place, "my-losses", points, {"my_losses": SOURCE})
    monkeypatch.syspath_prepend(str(place))
    return place


def test_a_loss_takes_settings_of_its_own_name_and_its_options(directory, make_config):
    config = make_config(loss_type="my_losses:Spread", loss_options={"c": 0.5}, epsilon=0.07)
    loss = config.objective().loss
    assert (loss.c, loss.epsilon, type(loss).__name__) == (0.5, 0.07, "Spread")
    assert type(make_config(loss_type="spread", loss_options={"c": 0.5}).objective().loss) is type(loss)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "spread"}, "loss_options do not fit 'spread': .*missing .* 'c'"),
        ({"loss_type": "spread", "loss_options": {"d": 1}}, "loss_options do not fit 'spread': .*'d'"),
        ({"loss_type": "my_losses:Spred"}, "loss_type: .*my_losses has no Spred; did you mean 'Spread'"),
        ({"loss_type": "no_such:Loss"}, "loss_type: .*No module named 'no_such'"),
        ({"loss_type": "json:JSONDecoder"}, "loss_type: .*lacks aggregate and __call__ and statistics"),
        ({"advantage": "steps"}, "advantage: unknown advantage 'steps'; did you mean 'step'"),
        ({"advantage_options": {"gamma": 1.0}}, "advantage_options do not fit 'step'"),
    ],
)
def test_what_cannot_be_used_is_explained(directory, make_config, settings, words):
    with pytest.raises(ValueError, match=words):
        make_config(**settings)


def test_the_objective_takes_the_level_and_the_aggregation_of_the_loss(directory, make_config):
    """One ratio a step, and every token counts the same, whatever the configuration says of GRPO's."""
    config = make_config(loss_type="spread", loss_options={"c": 0.0}, tis_clip_max=None).objective()
    logprobs = torch.log(torch.tensor([[0.5, 0.25], [0.5, 0.5]]))
    old = torch.log(torch.tensor([[0.25, 0.25], [0.5, 0.5]]))
    mask = torch.tensor([[True, True], [True, False]])
    scored = losses.Scored(logprobs, logprobs, old, mask, torch.tensor([1.0, -1.0]), old, mask)
    found = losses.objective(scored, config, losses.Normalizer(tokens=3, samples=2)).loss
    assert float(found) == pytest.approx((-2 * 2**0.5 + 1) / 3)


RANK = """
import atexit, os, runpy
import torch.distributed as dist
atexit.register(lambda: os.write(1, b"group open\\n" if dist.is_initialized() else b"group left\\n"))  # at once
runpy.run_module("dart_train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "names"),
    [pytest.param(1, ("my_losses:Spread", "my_losses:LastStep"), marks=pytest.mark.slow), (2, ("spread", "last"))],
)
def test_they_reach_every_process_that_trains(directory, record_into, model_dir, tmp_path, ranks, names):
    """`learn` alone, where the module is in the working directory; and ranks of torchrun, where it is installed.

    The ranks leave their process group before they end: in one that does not, gloo may abort after everything is done.
    """
    values = {
        "name": "run",
        "rollout": {"tasks": ["fake/two-steps"], "group_size": 4},
        "data": {"curation": {"max_staleness": None}},
        "trainer": {
            "loss_type": names[0], "loss_options": {"c": 0.25}, "advantage": names[1], "epsilon": 0.07, "beta": 0.0,
            "groups_per_step": 2, "max_steps": 2, "report_to": "none", "use_cpu": True, "torch_threads": 1,
        },
    }  # fmt: skip
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(values))
    config = parse_config(values)
    run = open_run(config, tmp_path)
    command = ["-m", "dart_train", "process", str(file), "learn", "--runs-dir", str(tmp_path)]
    path, where, left = os.environ.get("PYTHONPATH", ""), directory, 0
    if ranks > 1:
        script = tmp_path / "rank.py"
        script.write_text(RANK)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [*launcher, str(script), *command[2:]]
        path, where, left = f"{directory}{os.pathsep}{path}", tmp_path, ranks
    with open_data(config, run) as data:
        data.publish(0, model_dir, "initial")
        for key in "abcd":
            record_into(data, key)
        data.set_fact(ROLLOUTS_ENDED, True)
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=280, cwd=where,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert re.findall(r"group (open|left)\n", done.stdout) == ["left"] * left, done.stdout
        assert data.counts()["trained"] == 16
    rows = list(read_metrics(run.metrics("trainer")))
    assert [(row["own/c"], round(row["own/epsilon"], 6)) for row in rows] == [(0.25, 0.07)] * 2
