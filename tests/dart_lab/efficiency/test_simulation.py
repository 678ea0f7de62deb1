"""The simulation in small: nothing is lost or counted twice, and waiting for less gives more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dart_lab.efficiency.simulation import COUPLED, DART, TASK_WISE, Design, Simulation, prompt_to_read
from dart_lab.efficiency.study import FULL
from dart_lab.efficiency.workload import DesktopTimes, ModelTimes, Setting, draw
from dart_train.rollout.schedule.scheduler import Assignment
from tests.helpers.parameters import slow_but

pytestmark = pytest.mark.thorough
SMALL = Setting(desktops=20, engines=2, tasks=20, batch_groups=2, train_s_per_action=0.5)
DESIGNS = {"coupled": COUPLED, "task-wise": TASK_WISE, "DART": DART, "all parts": FULL}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_the_same_twice(design):
    first, second = (Simulation(SMALL, design).run(0.5, skip_hours=0.1) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_every_rollout_is_somewhere_and_in_one_place_only(design):
    simulation = Simulation(SMALL, design)
    simulation.run(1.5, skip_hours=0.0)
    counts = simulation.counts
    waiting = sum(group.members for group in (*simulation.ready, *simulation.ended, *simulation.groups.values()))
    known = counts.trained + counts.no_signal + counts.expired + waiting
    in_training = simulation.scheduler.completed - known
    assert 0 <= in_training <= SMALL.batch_groups * SMALL.group_size
    assert counts.trained > 0


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_nothing_is_trained_that_is_older_than_the_window(design):
    assert Simulation(SMALL, design).run(1.0, skip_hours=0.1).staleness <= SMALL.max_staleness


def test_a_coupled_loop_is_on_policy_and_has_one_batch_after_the_other():
    outcome = Simulation(SMALL, COUPLED).run(2.0, skip_hours=0.0)
    assert outcome.staleness == 0 and outcome.expired == 0
    assert outcome.cycle_s > outcome.batch_s > 100


def test_who_waits_for_less_uses_desktops_better():
    use = [Simulation(SMALL, design).run(3.0, skip_hours=0.5).env_utilisation for design in (COUPLED, TASK_WISE, DART)]
    assert use[0] < use[1] < use[2]


def test_over_provisioned_batches_take_less_time_and_lose_nothing():
    plain, over = (
        Simulation(SMALL, replace(COUPLED, over_provision=factor)).run(6.0, skip_hours=0.5) for factor in (1.0, 1.5)
    )
    assert over.batch_s < 0.8 * plain.batch_s and over.cycle_s < plain.cycle_s
    assert over.expired == 0 and over.staleness <= SMALL.max_staleness


def test_back_pressure_keeps_rollouts_from_expiring():
    slow = replace(SMALL, train_s_per_action=3.0, max_staleness=4)
    free, bounded = (Simulation(slow, Design(batches_ahead=ahead)).run(2.0, skip_hours=0.5) for ahead in (None, 2.0))
    assert free.expired > 0 and bounded.expired == 0
    assert bounded.played < free.played
    assert bounded.throughput == pytest.approx(free.throughput, rel=0.25)


@pytest.mark.parametrize("size", slow_but([2], [2, 4, 8]))
@pytest.mark.slow
def test_little_expires_whatever_the_size_of_groups(size):
    """180 desktops, a window of one version, a trainer that all wait for, and 40 % of groups with signal.

    Counted in rollouts of groups of 8, 50 % of what was played expired with groups of 4, and 75 % with groups of 2.
    """
    slow = Setting(desktops=180, engines=8, group_size=size, signal=0.4, train_s_per_action=6.8 / size)
    simulation = Simulation(slow, Design(bounded=True, batches_ahead=2.0))
    outcome = simulation.run(12.0, skip_hours=2.0)
    assert outcome.staleness <= 1 and outcome.updates > 20
    assert outcome.expired <= 0.05 * (outcome.trained + outcome.no_signal + outcome.expired)
    assert outcome.expired <= 0.06 * (outcome.trained + outcome.expired)  # of what there was to train on
    assert outcome.batch_s < 0.2 * outcome.cycle_s  # and the trainer does not wait for what was held back


@pytest.mark.slow
def test_a_quick_trainer_gets_as_much_from_fewer_rollouts():
    """180 desktops and a trainer that takes no time: the window stops what would expire, and hardly anything else."""
    quick = Setting(desktops=180, engines=8, signal=0.4, train_s_per_action=0.01)
    free, bounded = (
        Simulation(quick, Design(bounded=limited, batches_ahead=2.0 if limited else None)).run(2.0, skip_hours=0.5)
        for limited in (False, True)
    )
    assert bounded.trained > 0.85 * free.trained and bounded.played < 0.85 * free.played
    assert bounded.expired < 0.4 * free.expired


def test_a_warm_desktop_spares_the_boot():
    cold, warm = (Simulation(SMALL, Design(warm=share)).run(1.0, skip_hours=0.2).played for share in (0.0, 1.0))
    assert warm > 1.05 * cold


def test_without_chance_the_use_of_desktops_is_arithmetic():
    """One desktop, one engine, one-step episodes without spread: the shares follow from the latencies."""
    times = DesktopTimes(boot_s=10, setup_s=5, settle_s=0, pause_s=5, action_s=0, evaluate_s=(0, 0), tail=0)
    model = ModelTimes(
        image_tokens=900, fixed_tokens=100, response_tokens=10, response_spread=0, prefill_tokens_per_s=100,
        token_s=0.9, token_s_per_request=0.1, host_s_per_image=0,
    )  # fmt: skip
    setting = Setting(
        desktops=1, engines=1, tasks=1, max_steps=1, batch_groups=1, desktop=times, model=model, train_s_per_action=1e-3
    )
    outcome = Simulation(setting, DART).run(10.0, skip_hours=1.0)
    assert outcome.env_utilisation == pytest.approx(20 / 40, rel=0.01)
    assert outcome.rollout_utilisation == pytest.approx(20 / 40, rel=0.02)
    assert outcome.played == pytest.approx(60 / 40, rel=0.01)


def assignment(n: int, attempt: int = 0) -> Assignment:
    return Assignment("task-3", 12_345, "key", n, attempt, sampling_seed=0, group_size=8)


def test_an_episode_depends_on_its_assignment_alone():
    assert draw(SMALL, assignment(1)) == draw(SMALL, assignment(1))
    assert draw(SMALL, assignment(1)) != draw(SMALL, assignment(2)) != draw(SMALL, assignment(2, attempt=1))


def test_episodes_look_like_the_published_ones():
    setting = Setting()
    episodes = [draw(setting, Assignment(f"task-{i % 181}", 10_000 + i // 8, "", i % 8, 0, 0)) for i in range(181 * 16)]
    lengths = [len(episode.tokens) for episode in episodes]
    assert max(lengths) == 30 and 13 < sum(lengths) / len(lengths) < 17
    assert 0.45 < sum(episode.reward for episode in episodes) / len(episodes) < 0.6
    seconds = sorted(episode.environment_s for episode in episodes)
    assert 130 < seconds[len(seconds) // 2] < 160  # the reference's time budget of an OSWorld episode
    assert seconds[-len(seconds) // 100] > 2 * seconds[len(seconds) // 2]


def test_what_an_engine_has_to_read():
    model, responses = ModelTimes(), [10] * 10
    assert prompt_to_read(model, responses, 0, reused=False) == (1, 1000 + 2691)
    assert prompt_to_read(model, responses, 7, reused=False) == (5, 1000 + 70 + 5 * 2691)
    assert prompt_to_read(model, responses, 7, reused=True) == (1, 10 + 2691)
    assert prompt_to_read(model, responses, 5, reused=True) == (5, 1000 + 50 + 5 * 2691)  # a block has left the prompt


@pytest.mark.parametrize("ahead", slow_but([None], [None, 2.0]))
def test_a_failing_task_idles_no_desktop(ahead):
    """180 desktops, one task more, whose set-up fails after five minutes each time: the others play on."""
    setting = Setting(desktops=180, engines=8, train_s_per_action=0.2)
    whole, failing = (
        Simulation(replace(setting, broken=broken), Design(batches_ahead=ahead)).run(1.0, skip_hours=0.5)
        for broken in (0, 1)
    )
    assert failing.env_utilisation > 0.98 * whole.env_utilisation
    assert failing.played > 0.98 * whole.played
