"""What is decided by what nodes say of themselves, and what a person is told."""

from dataclasses import replace

import pytest

from dart_gym.cluster.pool import boot_admission
from dart_train.nodes.node_facts import NodeFacts, clock_skew, desktops_of, node_facts, why_unusable

HERE = NodeFacts({"dart-gui": "1", "Python": "3.11.2", "Ray": "2.60.0"}, 0.0, 16, 64000.0, 100.0, ())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (HERE, ""),
        (replace(HERE, versions={**HERE.versions, "Ray": "2.40.0"}), "Ray 2.40.0, and the launcher's has 2.60.0"),
        (replace(HERE, versions={**HERE.versions, "Python": "3.12.1"}), "Python 3.12.1"),
        (replace(HERE, disk_gb=0.5), "0.5 GB of disk left: free some"),
        (replace(HERE, lacks=("bubblewrap", "xvfb")), "lacks bubblewrap, xvfb: apt-get install"),
    ],
)
def test_a_node_that_cannot_be_used_is_told_of(other, said):
    reason = why_unusable("10.0.0.3", other, HERE)
    assert said in reason if said else reason == ""
    assert reason == "" or reason.startswith("node 10.0.0.3")


@pytest.mark.parametrize(
    ("offered", "cores", "memory_mb", "expected"),
    [(12, 16, 64000, 12), (200, 16, 64000, 128), (12, 16, 2000, 5), (4, 1, 100, 1)],
)
def test_desktops_are_those_offered_that_memory_and_cores_allow(offered, cores, memory_mb, expected):
    assert desktops_of(offered, replace(HERE, cores=cores, memory_mb=memory_mb)) == expected


def test_a_clock_is_off_only_by_more_than_the_question_took():
    assert clock_skew("n", replace(HERE, clock=100.0), 98.0, 103.0) == ""
    assert "7 s off" in clock_skew("n", replace(HERE, clock=110.0), 98.0, 103.0)
    assert "8 s off" in clock_skew("n", replace(HERE, clock=90.0), 98.0, 103.0)


def test_memory_is_what_control_groups_leave(monkeypatch):
    monkeypatch.setattr(boot_admission, "control_groups", lambda: [(3 << 20, 5 << 20)])
    assert node_facts().memory_mb == 3.0


def test_this_node_says_what_it_has():
    facts = node_facts()
    assert facts.cores >= 1 and facts.memory_mb > 0 and facts.disk_gb > 0 and facts.versions["Ray"]
