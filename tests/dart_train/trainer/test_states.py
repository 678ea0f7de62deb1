"""Which states are kept: none while the policy shows signs of a collapse, at the end of training neither."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from dart_train.trainer.states import BestMetric, States
from dart_train.trainer.weights.ranks import ALONE
from dart_train.trainer.weights.state_writer import StateWriter

pytestmark = pytest.mark.train


@pytest.fixture
def states(tmp_path) -> States:
    publisher = SimpleNamespace(version=3, unpublished=0, best=None)
    leases, bad_steps = SimpleNamespace(contained=None), SimpleNamespace(skipped=0)
    best = BestMetric("reward", True, window=1)
    return States(tmp_path, publisher, leases, bad_steps, ALONE, best=best, sharded=False, writer=StateWriter(ALONE))


@pytest.mark.parametrize("collapsing", [False, True])
def test_the_last_state_is_kept_unless_the_policy_collapses(states, collapsing):
    control = TrainerControl()
    states.end(TrainerState(global_step=7), control, collapsing=collapsing)
    assert control.should_save is not collapsing


@pytest.mark.parametrize("collapsing", [False, True])
def test_no_state_is_saved_or_the_best_while_the_policy_collapses(states, collapsing):
    """Also where no report is due at this step, so that the guard does not look: its signs last."""
    control, state = TrainerControl(should_save=True), TrainerState(global_step=7)
    states.end_step(state, control, {"reward": 1.0}, last=True, collapsing=collapsing)
    assert control.should_save is not collapsing
    assert state.best_global_step == (None if collapsing else 7)
