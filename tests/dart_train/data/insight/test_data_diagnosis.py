from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dart_train.data.curation.rules import Census
from dart_train.data.insight.diagnosis import Evidence, as_set, explain


def test_the_explanation_names_every_obstacle():
    census = Census(unfinished=12, dropped={"stale": 640, "no_signal": 172}, oldest_allowed=7)
    assert explain(census) == (
        "0 of 824 trajectories eligible: 640 older than version 7, 172 in groups with no variance, "
        "12 in unfinished groups"
    )
    assert explain(Census(eligible=16, eligible_groups=2)) == "16 of 16 trajectories eligible in 2 groups"
    assert "is the rollout service running" in explain(Census())


def test_the_explanation_shows_the_values_seen():
    census = Census(
        unfinished=12, leased=16, dropped={"stale": 640, "no_signal": 24, "untrainable": 3}, oldest_allowed=6
    )
    evidence = Evidence(
        serving=(7, 6),
        stale={3: 600, 4: 40},
        making={(3, 8): 1, (5, 8): 1, (4, 8): 1},
        no_signal={0.0: 2, 1.0: 1},
        terminals={"env_error": 2, "model_error": 1},
        asked=12,
        holders={"trainer-0": 16},
    )
    assert explain(census, evidence) == (
        "0 of 695 trajectories eligible, 12 groups asked for: "
        "640 older than version 6 (serving versions {6,7}; rows carry {3,4}), "
        "24 in groups with no variance (2 groups all 0, 1 groups all 1), "
        "12 in unfinished groups (1 with 5 of 8, 1 with 4 of 8, 1 with 3 of 8), "
        "16 leased now (trainer-0 16), "
        "3 ended in an environment, engine or evaluation error (env_error 2, model_error 1)"
    )


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_sets_stay_short_and_keep_their_ends(values):
    text = as_set(values)
    assert text.startswith(f"{{{min(values)}")
    assert text.endswith(f"{max(values)}}}")
    assert text.count(",") <= 5
