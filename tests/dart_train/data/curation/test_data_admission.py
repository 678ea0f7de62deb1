from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_train.data.curation.rollout_admission import Backlog, capacity, most_rollouts

SIZES = st.integers(0, 1000)


def areal_capacity(*, version: int, accepted: int, running: int, batch_size: int, max_staleness: int) -> int:
    """How many more rollouts AReaL (arXiv 2505.24298, `staleness_manager.py`) would start."""
    return (max_staleness + version + 1) * batch_size - (accepted + running)


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
    assert capacity(rows, batch_groups=batch, max_staleness=staleness, batches_ahead=None) == areal


@given(st.integers(1, 50), st.integers(0, 4), st.lists(st.sampled_from(["play", "learn"]), max_size=300))
def test_what_is_admitted_is_never_too_old_when_it_is_trained(batch, staleness, events):
    """Rollouts in flight finish at once; the trainer takes whole batches, oldest first, and publishes after each."""
    version, waiting = 0, []
    for event in events:
        backlog = Backlog(ready=len(waiting), leased=0, running=0)
        room = capacity(backlog, batch_groups=batch, max_staleness=staleness, batches_ahead=None)
        if event == "play" and room > 0:
            waiting.append(version)
        elif event == "learn" and len(waiting) >= batch:
            taken, waiting = waiting[:batch], waiting[batch:]
            assert version - min(taken) <= staleness
            version += 1


@given(SIZES, st.integers(1, 100), st.integers(0, 4), st.floats(1, 4), st.floats(0.05, 1))
def test_a_refusal_never_starves_the_trainer(ready, batch, staleness, ahead, usable):
    rows = Backlog(ready, 0, 0, usable)
    room = capacity(rows, batch_groups=batch, max_staleness=staleness, batches_ahead=ahead)
    if room <= 0:
        assert ready >= batch


@given(st.integers(0, 40), st.integers(0, 8), st.integers(0, 40), st.integers(1, 16), st.floats(0.05, 1))
def test_what_is_begun_brings_no_more_than_the_window_takes(ready, leased, running, batch, usable):
    """On average and one deviation more."""
    rows = Backlog(ready, leased, running, usable)
    room = capacity(rows, batch_groups=batch, max_staleness=1, batches_ahead=None)
    if room > 1:
        begun = running + room
        expected = begun * usable + (begun * usable * (1 - usable)) ** 0.5
        assert ready + leased + expected <= 2 * batch + 1e-6


def test_a_group_that_waits_for_its_last_member_takes_no_desktops_and_counts_for_the_window():
    late = Backlog(ready=0, leased=0, running=8, playing=1.0)
    assert capacity(late, batch_groups=8, max_staleness=None, batches_ahead=1.0) == 7
    assert capacity(late, batch_groups=8, max_staleness=0, batches_ahead=1.0) == 0


def test_rollouts_that_can_be_played_at_once_are_those_of_the_groups_that_may_be_open():
    sizes = {"batch_groups": 8, "max_staleness": 1, "batches_ahead": None}
    assert most_rollouts(8, **sizes) == 2 * 8 * 8 and most_rollouts(2, **sizes) == 2 * 8 * 2
    assert most_rollouts(8, **sizes, lease_held=True) == 8 * 8
    assert most_rollouts(8, **sizes, usable=0.4) >= 180  # DART's desktops, where 40 % of the groups have signal
    assert most_rollouts(8, batch_groups=8, max_staleness=None, batches_ahead=None) is None


def test_without_limits_any_number_may_start():
    assert capacity(Backlog(10**6, 10**6, 10**6), batch_groups=8, max_staleness=None, batches_ahead=None) is None


def test_the_tighter_of_two_limits_counts():
    late = Backlog(ready=20, leased=8, running=4)
    assert capacity(late, batch_groups=8, max_staleness=2, batches_ahead=2.0) == -8


@given(
    lease=st.integers(1, 12),
    versions=st.integers(1, 12),
    ready=st.integers(0, 20),
    running=st.integers(0, 20),
    leased=st.integers(0, 12),
    usable=st.floats(0.05, 1.0),
    staleness=st.none() | st.integers(0, 8),
    ahead=st.none() | st.floats(0.5, 6.0),
)
def test_what_the_next_lease_lacks_may_always_be_begun(
    lease, versions, ready, running, leased, usable, staleness, ahead
):
    """Four versions of a lease of two groups (mini_batches), and a trainer that waited for the second one for ever."""
    sizes = {"batch_groups": lease / versions, "max_staleness": staleness, "batches_ahead": ahead}
    backlog = Backlog(ready, leased, running, usable)
    bounded, plain = capacity(backlog, **sizes, lease_groups=lease), capacity(backlog, **sizes)
    if plain is None:
        assert bounded is None
    elif leased == 0:
        assert bounded == max(plain, lease - ready - running)
    elif leased >= lease:
        assert bounded >= plain and max(bounded, 0) == max(plain, 0), "nothing is begun early beside a whole lease"
