"""Rules of curation from outside: what they drop, how that is shown, and what a wrong one is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from data_builders import SMALL, make_step, make_trajectory, open_manager, record_group

from dart_gym.core.errors import PluginError
from dart_train.config.run_config import load_config
from dart_train.data import CurationConfig, RolloutState
from dart_train.data.curation.drop_rules import Member
from dart_train.data.curation.grouping import settle_group
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.store.schema import rollout_group, rollout_meta
from dart_train.launch.pipeline import open_run

RULES = """
from dart_train.data import CurationRule


class Loops(CurationRule):
    name = "loops"
    sentence = "repeat one action over and over"

    def drops(self, trajectory):
        return len(trajectory.steps) > 2


class Slow(CurationRule):
    name = "slow"
    sentence = "in groups that need too many steps"

    def drops_group(self, members):
        return sum(member.num_steps for member in members) / len(members) >= 2


class Nameless(CurationRule):
    sentence = "x"


class Builtin(Loops):
    name = "no_signal"


class Idle(CurationRule):
    name = "idle"
    sentence = "x"


class Stranger:
    name = "stranger"
    sentence = "x"


class Needs(Loops):
    def __init__(self, limit):
        self.limit = limit
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch) -> Path:
    """A module of rules in the current directory, as `module:Class` finds it."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "house_rules.py").write_text(RULES)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("house_rules", None)


def named(*names: str, **fields) -> CurationConfig:
    return CurationConfig(**{**SMALL.model_dump(), **fields, "rules": [f"house_rules:{name}" for name in names]})


def test_rules_drop_trajectories_and_groups_and_are_shown_by_name(rules, database, tmp_path):
    with open_manager(tmp_path, config=named("Loops", "Slow", group_size=3)) as data:
        looping = make_trajectory("loop", "g", 1.0, steps=(make_step(),) * 3)
        assert data.record(looping) is RolloutState.RECORDED
        record_group(data, "g", (0.0, 1.0))
        record_group(data, "slow", (0.0, 1.0, 0.0), steps=(make_step(),) * 2)
        record_group(data, "good", (0.0, 1.0, 0.0))
        leased = data.lease(9, "trainer", at_least=1)
        sizes = {group.key: [item.trajectory_id for item in group.trajectories] for group in leased}
        assert sizes == {"g": ["g-0", "g-1"], "good": ["good-0", "good-1", "good-2"]}
        status = data.status()
        assert status.census.dropped == {"loops": 1, "slow": 3} and status.census.total == 9
        assert status.dropped_groups == {"slow": 1} and status.decisions["slow: rejected"] == 1
        assert "3 in groups that need too many steps" in data.diagnose()
        assert "1 repeat one action over and over" in status.diagnosis
    with open_manager(tmp_path) as data:  # one that does not have the rules
        assert "3 dropped by the rule slow" in data.diagnose()


def test_a_group_of_which_a_rule_drops_every_member_is_dropped(rules, database, tmp_path):
    with open_manager(tmp_path, config=named("Loops")) as data:
        record_group(data, "g", (0.0, 1.0), steps=(make_step(),) * 3)
        assert data.ready() == (0, 0) and data.census().dropped == {"loops": 2}
        columns = rollout_group.c.state, rollout_group.c.reason, rollout_group.c.members
        assert data.store.read(lambda c: [tuple(row) for row in c.execute(sa.select(*columns))]) == [
            ("rejected", "loops", 0)
        ]


def test_what_a_rule_dropped_makes_no_new_group(rules, database, tmp_path, clock):
    config = named("Loops", group_size=3, replay_leftovers=True, leftover_after_s=60.0)
    with open_manager(tmp_path, clock, config) as data:
        for key in "abc":
            data.record(make_trajectory(f"{key}-loop", key, 1.0, steps=(make_step(),) * 3, ended_at=clock.now))
            data.record(make_trajectory(f"{key}-fine", key, float(key == "a"), ended_at=clock.now))
        clock.now += 100.0
        assert data.regroup() == 1
        [group] = data.lease(1, "trainer").groups
        assert {item.trajectory_id for item in group.trajectories} == {"a-fine", "b-fine", "c-fine"}
        marked = sa.select(rollout_meta.c.state).where(rollout_meta.c.reason == "loops")
        assert data.store.read(lambda c: set(c.execute(marked).scalars())) == {"rejected"}


def test_a_rule_sees_the_success_of_the_pool_as_a_member(rules):
    from dart_train.data.curation.experience_pool import Success

    config = named("Slow", experience_pool=True)
    members = [Member(index, 0.0, num_steps=1) for index in range(2)]
    quick, long = Success(9, "quick", 1.0, 0.0, num_steps=1), Success(9, "long", 1.0, 0.0, num_steps=3)
    assert settle_group(members, config, [quick], "g").reason is None
    assert settle_group(members, config, [long], "g").reason == "slow"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["Lops"], "has no Lops; did you mean 'Loops'"),
        (["Nameless"], "needs a name of 1 to 64 characters and a sentence"),
        (["Builtin"], "has the name 'no_signal', which is built in"),
        (["Idle"], r"overrides neither drops\(trajectory\) nor drops_group\(members\)"),
        (["Stranger"], "is no subclass of dart_train.data.CurationRule"),
        (["Needs"], r"is called with \(\), but takes \(limit\)"),
        (["Loops", "Loops"], "names two rules 'loops'"),
    ],
)
def test_a_rule_that_cannot_be_used_is_one_line(rules, names, message):
    with pytest.raises(PluginError, match=message) as caught:
        named(*names)
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.process
def test_a_rule_of_the_configuration_is_there_in_the_processes_of_a_run(rules, tmp_path):
    """Its name is in the configuration, which every process of the run reads."""
    config = rules / "run.yaml"
    rollout = {"tasks": ["fake/button"]}
    config.write_text(
        json.dumps({"name": "tiny", "rollout": rollout, "data": {"curation": {"rules": ["house_rules:Loops"]}}})
    )
    command = [
        sys.executable,
        "-m",
        "dart_train",
        "status",
        "--json",
        str(tmp_path / "status.json"),
        "--runs-dir",
        str(tmp_path / "runs"),
    ]
    run = open_run(load_config(config), tmp_path / "runs")
    with DataManager.open(run.database_url, run.data, "tiny"):
        pass  # what a run that has begun leaves behind
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, str(config)], cwd=rules, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "status.json").read_text())["census"]["eligible"] == 0
    run.config.write_text(run.config.read_text().replace("Loops", "Lops"))
    failed = subprocess.run([*command, str(config)], cwd=rules, capture_output=True, text=True, env=environment)
    assert failed.returncode != 0 and "did you mean 'Loops'" in failed.stderr and "Traceback" not in failed.stderr
