from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_train.data.curation.rules import CurationConfig, TaskSampling
from dart_train.data.curation.task_sampling import band_of, curriculum_shares, success_share, task_shares

rates = st.none() | st.floats(0, 1)


@pytest.mark.parametrize(
    ("rate", "share"), [(None, 1.0), (0.0, 0.1), (0.1, 0.36), (0.25, 0.75), (0.5, 1.0), (0.9, 0.36), (1.0, 0.1)]
)
def test_tasks_that_succeed_half_the_time_get_most(rate, share):
    assert success_share(rate) == pytest.approx(share)


@pytest.mark.parametrize(("rate", "band"), [(1.0, 0), (0.7, 0), (0.69, 1), (0.3, 1), (0.29, 2), (0.0, 2)])
def test_bands_begin_at_their_boundary(rate, band):
    assert band_of(rate) == band


def test_hard_tasks_wait_until_the_easier_ones_are_learned():
    early = {"easy": 0.8, "medium": 0.35, "hard": 0.1, "new": None}
    assert curriculum_shares(early) == {"easy": 1.0, "medium": 1.0, "hard": 0.1, "new": 1.0}
    later = {**early, "medium": 0.45}  # (0.8 + 0.45) / 2 reaches 0.6
    assert curriculum_shares(later)["hard"] == 1.0


def test_only_hard_tasks_do_not_wait_for_anything():
    assert curriculum_shares({"a": 0.0, "b": 0.2}) == {"a": 1.0, "b": 1.0}


@given(st.dictionaries(st.text(max_size=3), rates), st.sampled_from(list(TaskSampling)), st.floats(0.01, 1))
def test_no_task_is_forgotten_and_none_exceeds_its_weight(success, sampling, floor):
    shares = task_shares(CurationConfig(task_sampling=sampling, sampling_floor=floor), success)
    assert shares.keys() == success.keys()
    assert all(floor <= share <= 1.0 for share in shares.values())
    assert all(shares[task] == 1.0 for task, rate in success.items() if rate is None)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), min_size=1))
def test_the_easiest_tasks_are_always_open(success):
    shares = curriculum_shares(success)
    assert shares[max(success, key=lambda task: success[task])] == 1.0
