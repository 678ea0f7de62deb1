"""What learns and what does not, on a task of two steps: minutes, three seeds, and thresholds that can fail.

A tiny vision-language model plays `fake/two-steps`; rollouts go through the real data manager, leases and trainer.
Measured on two cores: docs/guides/training.md, "Does it learn?".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import two_steps

from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.batches import lease_source
from dart_train.trainer.settings.grpo_config import DartGRPOConfig

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(1800)]

TINY = TinyModelConfig(hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1)
SEEDS = (1, 2, 3)
ROUNDS = 60
SETTINGS = {
    "use_cpu": True, "torch_threads": 1, "report_to": "none", "beta": 0.0, "top_entropy_quantile": 1.0,
    "loss_type": "dapo", "scale_rewards": "none", "learning_rate": 3e-3, "adam_beta2": 0.98, "groups_per_step": 4,
    "min_groups_per_step": 1, "max_steps": 10_000, "save_steps": 10_000, "publish_steps": 10_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Warm starts by seed, screens that were always shown wrong, and share of right demonstrations, made once."""
    made: dict[tuple[int, tuple[int, ...], float], Path] = {}

    def start(seed: int, never: tuple[int, ...], right: float) -> Path:
        if (seed, never, right) not in made:
            root = tmp_path_factory.mktemp("warm")
            model = build_tiny_model(root / "model", seed=seed, config=TINY)
            two_steps.warm_up(model, root / "warm", right=right, seed=seed, never=never)
            made[seed, never, right] = root / "warm"
        return made[seed, never, right]

    return start


@pytest.fixture
def play(tmp_path, warm, monkeypatch):
    """Train a seed for some rounds; returns the success of each round."""
    monkeypatch.setattr(lease_source, "POLL_S", 0.01)
    runs = iter(range(100))

    def run(
        seed: int, rounds: int, *, lag: int = 0, never=(), screens=two_steps.SCREENS, pool: bool = False,
        right: float = 0.55, **settings,
    ) -> list[float]:  # fmt: skip
        root = tmp_path / str(next(runs))
        curation = CurationConfig(group_size=two_steps.GROUP_SIZE, max_staleness=None, experience_pool=pool)
        with DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "run", config=curation) as data:
            config = DartGRPOConfig(output_dir=str(root / "trainer"), seed=seed, **(SETTINGS | settings))
            start = warm(seed, never, right)
            world = two_steps.TwoSteps(data, start, rounds=rounds, lag=lag, stream=seed, seeds=screens)
            for screen in never if pool else ():
                two_steps.record_oracle(world, screen)
            return two_steps.learn(world, start, config)

    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_two_steps_are_learned(play, seed):
    success = play(seed, ROUNDS, right=0.45)
    print(f"seed {seed}: {success}")
    assert np.mean(success[:2]) < 0.35
    assert np.mean(success[-5:]) > 0.90


def test_with_rollouts_three_versions_behind_the_importance_weight_helps(play):
    settings = {"lag": 3, "learning_rate": 2e-3}
    with_weight = [np.mean(play(seed, 50, **settings)[-10:]) for seed in SEEDS]
    without = [np.mean(play(seed, 50, tis_clip_max=None, **settings)[-10:]) for seed in SEEDS]
    print(f"last ten rounds with the weight {with_weight}, without {without}")
    assert np.mean(with_weight) > np.mean(without) + 0.1


def test_groups_that_fail_as_a_whole_are_learned_with_the_pool_only(play):
    """All demonstrations of this screen clicked on the same wrong button: the policy does not find the right ones."""
    alone = {"never": (2,), "screens": (2,), "groups_per_step": 1}
    without = play(1, 25, **alone)
    with_pool = play(1, 35, pool=True, **alone)
    print(f"without the pool {without}, with it {with_pool}")
    assert np.mean(with_pool[:2]) < 0.1 and np.mean(without[-5:]) < 0.2
    assert np.mean(with_pool[-5:]) > 0.8
