from __future__ import annotations

import pytest
from data_builders import SMALL, record_group
from hypothesis import given
from hypothesis import strategies as st

from dart_train.data.curation.rollout_admission import Backlog, admission, areal_capacity, capacity

SIZES = st.integers(0, 1000)


@pytest.mark.parametrize(
    ("version", "accepted", "running", "room"), [(0, 0, 0, 16), (0, 10, 6, 0), (3, 24, 0, 16), (3, 40, 4, -4)]
)
def test_areals_formula_on_worked_examples(version, accepted, running, room):
    """Batches of 8, one version behind at most: (1 + version + 1) * 8 - (accepted + running)."""
    found = areal_capacity(version=version, accepted=accepted, running=running, batch_size=8, max_staleness=1)
    assert found == room


@given(st.integers(0, 50), SIZES, SIZES, SIZES, st.integers(1, 100), st.integers(0, 8))
def test_counting_rows_is_areals_formula(version, ready, leased, running, batch, staleness):
    """Where each version consumed one batch: what was trained stands on both sides and falls out."""
    trained = version * batch
    areal = areal_capacity(
        version=version,
        accepted=trained + leased + ready,
        running=running,
        batch_size=batch,
        max_staleness=staleness,
    )
    rows = Backlog(ready=ready, leased=leased, running=running)
    assert capacity(rows, batch_size=batch, max_staleness=staleness, batches_ahead=None) == areal


@given(st.integers(1, 50), st.integers(0, 4), st.lists(st.sampled_from(["play", "learn"]), max_size=300))
def test_what_is_admitted_is_never_too_old_when_it_is_trained(batch, staleness, events):
    """Rollouts in flight finish at once; the trainer takes whole batches, oldest first, and publishes after each."""
    version, waiting = 0, []
    for event in events:
        backlog = Backlog(ready=len(waiting), leased=0, running=0)
        if event == "play" and admission(backlog, batch_size=batch, max_staleness=staleness, batches_ahead=None):
            waiting.append(version)
        elif event == "learn" and len(waiting) >= batch:
            taken, waiting = waiting[:batch], waiting[batch:]
            assert version - min(taken) <= staleness
            version += 1


@given(SIZES, st.integers(0, 64), st.integers(0, 9), st.integers(1, 100), st.integers(0, 4), st.floats(1, 4))
def test_a_refusal_never_starves_the_trainer(ready, running, of_task, batch, staleness, ahead):
    found = admission(
        Backlog(ready, 0, running, of_task),
        batch_size=batch,
        max_staleness=staleness,
        batches_ahead=ahead,
        task_groups_ahead=2,
    )
    if not found and running == 0:
        assert ready >= batch


def test_without_limits_any_number_may_start():
    found = admission(Backlog(10**6, 10**6, 10**6), batch_size=8, max_staleness=None, batches_ahead=None)
    assert found
    assert found.room is None


def test_a_refusal_says_why():
    late = admission(Backlog(ready=20, leased=8, running=4), batch_size=8, max_staleness=2, batches_ahead=2.0)
    assert (late.room, bool(late)) == (-8, False)
    assert "20 trajectories wait, 8 are leased, 4 run, 8 more than it can use" in late.reason
    crowded = Backlog(ready=8, leased=0, running=0, task_ready=3)
    limits = {"batch_size": 8, "max_staleness": 2, "batches_ahead": 2.0}
    assert "3 groups of this task wait already, 2 may" in admission(crowded, **limits, task_groups_ahead=2).reason
    assert admission(crowded, **limits, task_groups_ahead=4)


def test_a_task_of_which_enough_waits_is_refused_until_the_trainer_took_some(database, data):
    """By the rows: two of its groups are a batch of `SMALL`, and one may wait."""
    data.config = SMALL.model_copy(update={"task_groups_ahead": 1})
    limits = {"fake/button": None, "another": None}
    record_group(data, "g0")
    assert data.admission(0, "fake/button")  # less than a batch waits: else the trainer could wait for ever
    record_group(data, "g1")
    assert data.admission(0)
    assert data.admission(0, "another")
    assert not data.admission(0, "fake/button")
    assert "2 groups of this task wait already, 1 may" in data.admission(0, "fake/button").reason
    assert {task: plan.admitted for task, plan in data.plans(limits).items()} == {"fake/button": False, "another": True}
    data.lease(1, "me")
    assert data.admission(0, "fake/button")
    assert all(plan.admitted for plan in data.plans(limits).values())
