"""Two policies compared: what is paired, and how often the test is wrong."""

import itertools

import numpy as np
import pytest

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.comparison import compare, sign_test
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import TerminalState


def record(task: str, seed: int, score: float | None, **more) -> Trajectory:
    return Trajectory(task, seed, "Do it", "h", terminal=TerminalState.DONE, score=score, **more)


def evaluation(rates: dict[str, float], rng: np.random.Generator, episodes: int = 8) -> list[Trajectory]:
    return [record(task, seed, float(rng.random() < rate)) for task, rate in rates.items() for seed in range(episodes)]


def test_the_sign_test_against_enumeration():
    values = [0.5, -0.25, 0.75, 0.125, 0.5]
    means = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((-1, 1), repeat=5)
    ]
    assert sign_test(values) == pytest.approx(sum(m >= sum(values) - 1e-12 for m in means) / 32)
    assert sign_test([1.0] * 6) == pytest.approx(2 / 64)
    assert sign_test([0.1] * 20) < 0.001, "by draws"
    assert sign_test([]) == sign_test([0.0, 0.0]) == 1.0
    assert sign_test([1.0, -1.0]) == 1.0


def test_a_policy_is_not_different_from_itself():
    episodes = evaluation({f"t/{n}": 0.5 for n in range(10)}, np.random.default_rng(0))
    result = compare(episodes, episodes)
    assert (result.verdict, result.p_value, result.difference) == ("no difference", 1.0, 0.0)
    low, high = result.interval
    assert low < 0 < high, "ten tasks do not prove that two policies are equal"
    assert (result.unit, result.pairs, result.tasks, result.left_out) == ("task", 10, 10, 0)


@pytest.mark.thorough
def test_equal_policies_differ_as_seldom_as_the_level_says_and_better_ones_are_found():
    rng, wrong, found = np.random.default_rng(5), 0, 0
    for _ in range(200):
        rates = dict(zip([f"t/{n}" for n in range(12)], rng.random(12), strict=True))
        better = {task: min(1.0, rate + 0.4) for task, rate in rates.items()}
        first = evaluation(rates, rng)
        wrong += compare(first, evaluation(rates, rng)).verdict != "no difference"
        found += compare(first, evaluation(better, rng)).verdict == "B is better"
    assert wrong <= 20, f"{wrong} of 200 at the 5 % level"
    assert found >= 180


def test_few_tasks_are_paired_by_episode_and_what_is_lost_is_left_out():
    a = [record("t/a", seed, 0.0) for seed in range(8)]
    b = [record("t/a", seed, 1.0) for seed in range(7)] + [record("t/a", 7, None, lost_by="environment")]
    result = compare(a, [*b, record("t/b", 0, 1.0)])
    assert (result.unit, result.pairs, result.left_out, result.verdict) == ("episode", 7, 2, "B is better")
    assert (result.better_a, result.better_b) == (0, 7)
    low, high = result.interval
    assert 0 < low < 0.6 and high == 1.0, "seven pairs that all differ do not prove a difference of 100 %"
    assert compare(b, a).verdict == "A is better"


def test_what_cannot_be_compared():
    with pytest.raises(ConfigurationError, match="no episode in common"):
        compare([record("t/a", 0, 1.0)], [record("t/a", 1, 1.0)])
    other = Trajectory("t/a", 0, "Do it", "other", terminal=TerminalState.DONE, score=1.0)
    with pytest.raises(ConfigurationError, match="not the same task"):
        compare([record("t/a", 0, 1.0)], [other])
