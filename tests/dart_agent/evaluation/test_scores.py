"""Statistics of episodes, against enumeration, published values and simulation."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.scores import bootstrap_interval, pass_at_k, score_groups, score_task
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.rates import wilson_interval


def outcome(
    task_id: str, seed: int, score: float | None = 0.0, terminal: str = "done", lost_by: str = ""
) -> Trajectory:
    ended = TerminalState(terminal)
    return Trajectory(task_id, seed, terminal=ended, score=score, lost_by=lost_by, num_actions=2)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(case):
    episodes, successes, k = case
    outcomes = [1] * successes + [0] * (episodes - successes)
    subsets = [any(subset) for subset in itertools.combinations(outcomes, k)]
    assert pass_at_k(episodes, successes, k) == pytest.approx(sum(subsets) / len(subsets))


def test_pass_at_k_is_unbiased_and_the_simple_formula_is_not():
    n, k, rate = 5, 4, 0.2
    weights = [math.comb(n, c) * rate**c * (1 - rate) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - rate) ** k
    assert sum(w * pass_at_k(n, c, k) for c, w in enumerate(weights)) == pytest.approx(truth)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(weights)) < truth - 0.05


def test_pass_at_k_of_many_episodes_and_of_nonsense():
    assert pass_at_k(200, 1, 1) == pytest.approx(0.005)
    assert pass_at_k(2000, 3, 1000) == pytest.approx(1 - 0.5 * (999 / 1999) * (998 / 1998), abs=1e-9)
    for case in ((3, 1, 4), (3, 4, 1), (3, 1, 0), (3, -1, 1)):
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(*case)


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng, covered, runs = np.random.default_rng(1), 0, 300
    for _ in range(runs):
        low, high = bootstrap_interval(list(rng.beta(2, 3, size=30)), resamples=500)
        covered += low <= 0.4 <= high
    assert 0.90 <= covered / runs <= 0.98


def test_the_bootstrap_does_not_depend_on_the_order_and_has_ends():
    values = [0.0, 0.5, 1.0, 0.25, 0.25, 0.75]
    shuffled = random.Random(3).sample(values, len(values))
    assert bootstrap_interval(values) == bootstrap_interval(shuffled)
    low, high = bootstrap_interval(values)
    assert 0 < low < sum(values) / len(values) < high < 1
    assert bootstrap_interval([1.0] * 4) == (1.0, 1.0)
    assert bootstrap_interval([]) == (0.0, 1.0)


def test_scores_by_application():
    def task(name: str, *scores: float | None) -> list[Trajectory]:
        counts, is_lost = ("done", ""), ("env_error", "environment")
        return [outcome(name, n, score, *(is_lost if score is None else counts)) for n, score in enumerate(scores)]

    played = {"s/a": task("s/a", 1.0, 0.0, 1.0, 0.0), "s/b": task("s/b", 0.0, 0.0, 0.0, None), "s/c": task("s/c", 1.0)}
    scores = [score_task(name, episodes) for name, episodes in played.items()]
    assert scores[1].lost_by == {"environment": 1} and scores[1].terminals == {"done": 3, "env_error": 1}
    one, two, whole = score_groups(scores, {"s/a": "office", "s/b": "office", "s/c": "web"}, k=4)
    assert (one.name, one.tasks, one.pass_1, one.pass_k, one.pass_k_tasks) == ("office", 2, 0.25, 1.0, 1)
    low, high = one.pass_1_interval
    assert low == 0.0, "two tasks of 0.5 and 0: their means are 0, 0.25, 0.5"
    assert high == pytest.approx(wilson_interval(2, 7)[1]) and high > 0.5, "seven episodes do not exclude more"
    assert one.pass_k_interval is None, "one task with four episodes says nothing about others"
    assert (two.name, two.pass_1, two.pass_1_interval) == ("web", 1.0, wilson_interval(1, 1))
    assert math.isnan(two.pass_k)
    assert (whole.name, whole.tasks) == ("all", 3) and whole.pass_1 == pytest.approx(0.5)
    assert whole.total.lost_by == {"environment": 1} and whole.total.episodes == 8


def test_equal_rates_prove_no_certainty():
    solved = [score_task(name, [outcome(name, n, 1.0, "done", "") for n in range(4)]) for name in ("s/a", "s/b", "s/c")]
    [group, _] = score_groups(solved, dict.fromkeys(("s/a", "s/b", "s/c"), "x"), k=1)
    assert group.pass_1_interval == wilson_interval(12, 12)
    [group, _] = score_groups(solved, dict.fromkeys(("s/a", "s/b", "s/c"), "x"), k=2)
    assert group.pass_k_interval == wilson_interval(6, 6), "four episodes are two attempts of two"


def test_an_application_without_episodes_that_count():
    lost = score_task("s/a", [outcome("s/a", 0, None, "model_error", "engine")])
    [group, _] = score_groups([lost], {"s/a": "x"}, k=1)
    assert group.tasks == 0 and math.isnan(group.pass_1) and group.pass_1_interval == (0.0, 1.0)
