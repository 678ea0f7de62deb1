"""Whatever is done in whatever order, by two trainers and eight rollout workers that crash and come back: no trajectory
is lost, counted twice or leased stale; nothing is trained twice but what is counted as surplus."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa
from data_builders import SMALL, URL_FILE, Clock, empty, make_trajectory, open_manager, publish
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import LeaseError
from dart_train.data import LeasedGroups
from dart_train.data.groups import lease_rows
from dart_train.data.store.schema import rollout_group, rollout_meta, rollout_run

OF_GROUP = {
    "open": "recorded",
    "ready": "recorded",
    "leased": "leased",
    "trained": "trained",
    "expired": "expired",
    "rejected": "rejected",
}
WORKERS = st.integers(0, 7)
TRAINERS = st.sampled_from(["a", "b"])


@dataclass(frozen=True)
class Weights:
    """What a trainer has learned: groups, and the serial of its last lease."""

    groups: tuple[str, ...] = ()
    serial: int = 0


@dataclass
class Trainer:
    """A trainer's memory and its checkpoint on disk."""

    now: Weights = Weights()
    saved: Weights = Weights()
    lease: LeasedGroups | None = None
    trained: bool = False  # on its lease


@dataclass
class Worker:
    """A rollout worker: what it has played, with files but without rows where it crashed in between."""

    played: int = 0
    unrecorded: list[Trajectory] = field(default_factory=list)


class Life(RuleBasedStateMachine):
    def __init__(self, url: str | None) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        if url is not None:
            (self.folder / URL_FILE).write_text(url)
            empty(url)
        self.clock = Clock()
        self.data = open_manager(self.folder, self.clock)
        self.recorded = self.version = 0
        self.workers = [Worker() for _ in range(8)]
        self.trainers = {"a": Trainer(), "b": Trainer()}

    def teardown(self) -> None:
        for name in self.trainers:
            self._restart(name)
        self.weights_and_rows_agree()
        self.data.close()
        shutil.rmtree(self.folder)

    # Rollout workers

    def _play(self, number: int, group: int, reward: float, lag: int, broken: bool) -> Trajectory:
        worker, version = self.workers[number], max(0, self.version - lag)
        worker.played += 1
        terminal = TerminalState.ENV_ERROR if broken and reward else TerminalState.DONE
        name, key = f"w{number}-{worker.played}", f"g{group}-{self.version}"
        return make_trajectory(name, key, reward, version, terminal=terminal)

    @rule(
        w=WORKERS, group=st.integers(0, 4), reward=st.sampled_from([0.0, 1.0]), lag=st.integers(0, 3), bad=st.booleans()
    )
    def record(self, w: int, group: int, reward: float, lag: int, bad: bool) -> None:
        self.data.record(self._play(w, group, reward, lag, bad))
        self.recorded += 1

    @rule(w=WORKERS, group=st.integers(0, 4))
    def crash_while_recording(self, w: int, group: int) -> None:
        trajectory = self._play(w, group, 1.0, 0, False)
        self.data.files.write_trajectory(trajectory)
        self.workers[w].unrecorded.append(trajectory)

    @precondition(lambda self: any(worker.unrecorded for worker in self.workers))
    @rule()
    def come_back_and_record(self) -> None:
        for worker in self.workers:
            for trajectory in worker.unrecorded:
                for _ in range(2):  # and say so twice
                    self.data.record(trajectory)
                self.recorded += 1
            worker.unrecorded.clear()

    # Trainers

    @precondition(lambda self: any(trainer.lease is None for trainer in self.trainers.values()))
    @rule(name=TRAINERS, groups=st.integers(1, 2))
    def lease(self, name: str, groups: int) -> None:
        trainer = self.trainers[name]
        if trainer.lease is not None:
            return
        leased = self.data.lease(groups, name, ttl_s=10, at_least=1)
        if leased is None:
            assert self.data.ready()[0] == 0
            return
        for group in leased:
            assert len(group.trajectories) == SMALL.group_size
            assert len(set(group.rewards)) > 1
            oldest = min(t.oldest_version for t in group.trajectories)
            assert self.version == 0 or oldest >= self.version - SMALL.max_staleness
        trainer.lease, trainer.trained = leased, False

    @precondition(lambda self: any(trainer.lease for trainer in self.trainers.values()))
    @rule(name=TRAINERS, what=st.sampled_from(["heartbeat", "train", "train", "commit", "commit", "release"]))
    def work(self, name: str, what: str) -> None:
        trainer = self.trainers[name]
        if trainer.lease is None:
            return
        try:
            if what == "heartbeat":
                trainer.lease.heartbeat()
            elif what == "train" and not trainer.trained:
                learned = (*trainer.now.groups, *(group.key for group in trainer.lease))
                trainer.now, trainer.trained = Weights(learned, trainer.lease.serial), True
            elif what == "commit" and trainer.trained:
                leased, trainer.lease = trainer.lease, None
                leased.commit(self.version)
            elif what == "release" and not trainer.trained:
                leased, trainer.lease = trainer.lease, None
                leased.release()
        except LeaseError:
            assert what in ("heartbeat", "commit")

    @rule(name=TRAINERS)
    def save(self, name: str) -> None:
        self.trainers[name].saved = self.trainers[name].now

    @rule(name=TRAINERS)
    def crash_and_resume(self, name: str) -> None:
        self._restart(name)

    def _restart(self, name: str) -> None:
        trainer = self.trainers[name]
        trainer.now, trainer.lease = trainer.saved, None
        self.data.resume(name, trainer.saved.serial)

    # Time

    @rule()
    def publish(self) -> None:
        self.version += 1
        publish(self.data, self.version)

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def sweep(self) -> None:
        self.data.sweep()

    @rule()
    def restart(self) -> None:
        for name in self.trainers:
            self._restart(name)
        self.data.close()
        self.data = open_manager(self.folder, self.clock)

    # What is true all the time

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        assert self.data.census().total == sum(self.data.counts().values()) == self.recorded

    @invariant()
    def rows_agree(self) -> None:
        runs, metas, groups = self.data.store.read(
            lambda c: [list(c.execute(sa.select(table))) for table in (rollout_run, rollout_meta, rollout_group)]
        )
        trained = {row.trajectory_id for row in metas if row.state == "trained"}
        assert {row.trajectory_id: row.used for row in runs if row.used} == dict.fromkeys(trained, 1)
        for group in groups:
            members = [row for row in metas if row.group_id == group.id and row.reason != "surplus"]
            late = [row for row in members if row.state == "expired"] if group.state == "expired" else []
            assert {row.state for row in members} <= {OF_GROUP[group.state]}
            assert group.members == len(members) or late
            if group.state in ("leased", "trained"):
                assert {row.lease_id for row in members} == {group.lease_id}

    def weights_and_rows_agree(self) -> None:
        """Once every trainer has begun again: trained is what their weights hold, each group once."""
        held = Counter(key for trainer in self.trainers.values() for key in trainer.now.groups)
        twice = sum(times - 1 for times in held.values())
        assert twice <= self.data.read(lease_rows.count_surplus)
        rows = self.data.store.read(
            lambda c: dict(c.execute(sa.select(rollout_group.c.group_key, rollout_group.c.state)).all())
        )
        assert {key for key, state in rows.items() if state == "trained"} <= set(held)
        # What left the window while its lease was lost was trained all the same; what others have will be again.
        assert sum(rows[key] not in ("trained", "expired") for key in held) <= self.data.read(lease_rows.count_surplus)


@pytest.mark.thorough
def test_any_order_of_events(database, request):
    url = request.getfixturevalue("mysql_url") if database == "mysql" else None
    few = 5 if database == "mysql" else 15
    run_state_machine_as_test(
        lambda: Life(url), settings=settings(max_examples=few, stateful_step_count=30, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.timeout(3000)  # pytest's own, in mid-example, reads as flaky generation of data
def test_any_order_of_very_many_events(database, request):
    url = request.getfixturevalue("mysql_url") if database == "mysql" else None
    few = 60 if database == "mysql" else 400
    run_state_machine_as_test(
        lambda: Life(url), settings=settings(max_examples=few, stateful_step_count=60, deadline=None)
    )
