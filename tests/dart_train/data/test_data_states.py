"""Whatever is done in whatever order: no trajectory is lost, counted twice, leased twice, or trained unseen."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import sqlalchemy as sa
from data_builders import SMALL, Clock, make_trajectory, open_manager, publish
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dart_gym.outcomes import TerminalState
from dart_train.data.schema import rollout_group, rollout_meta, rollout_run
from dart_train.errors import LeaseError

OF_GROUP = {
    "open": "recorded",
    "ready": "recorded",
    "leased": "leased",
    "trained": "trained",
    "expired": "expired",
    "rejected": "rejected",
}


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.data = open_manager(self.folder, self.clock)
        self.recorded = self.version = 0
        self.leases: dict[str, set[str]] = {}
        self.committed: set[str] = set()

    def teardown(self) -> None:
        self.data.close()
        shutil.rmtree(self.folder)

    @rule(group=st.integers(0, 5), reward=st.sampled_from([0.0, 1.0]), lag=st.integers(0, 3), broken=st.booleans())
    def record(self, group: int, reward: float, lag: int, broken: bool) -> None:
        terminal = TerminalState.ENV_ERROR if broken and reward else TerminalState.DONE
        version = max(0, self.version - lag)
        name = f"t{self.recorded}"
        self.data.record(make_trajectory(name, f"g{group}-{self.version}", reward, version, terminal=terminal))
        self.recorded += 1

    @rule(groups=st.integers(1, 2), holder=st.sampled_from(["a", "b"]))
    def lease(self, groups: int, holder: str) -> None:
        leased = self.data.lease(groups, holder, ttl_s=10, at_least=1)
        if leased is None:
            assert self.data.ready()[0] == 0
            return
        names = {t.trajectory_id for group in leased.groups for t in group.trajectories}
        assert not names & self.committed
        for group in leased.groups:
            assert len(group.trajectories) == SMALL.group_size
            assert len(set(group.rewards)) > 1
            oldest = min(t.oldest_version for t in group.trajectories)
            assert self.version == 0 or oldest >= self.version - SMALL.max_staleness
        self.leases[leased.lease_id] = names

    @precondition(lambda self: self.leases)
    @rule(pick=st.randoms(use_true_random=False), what=st.sampled_from(["commit", "release", "heartbeat"]))
    def end(self, pick, what: str) -> None:
        lease_id = pick.choice(sorted(self.leases))
        try:
            if what == "commit":
                self.data.commit(lease_id, self.version)
                self.committed |= self.leases[lease_id]
            elif what == "release":
                self.data.release(lease_id)
            else:
                self.data.heartbeat(lease_id)
        except LeaseError:
            assert what != "release"

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
        self.data.close()
        self.data = open_manager(self.folder, self.clock)

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        assert self.data.census().total == sum(self.data.counts().values()) == self.recorded

    @invariant()
    def rows_agree(self) -> None:
        runs, metas, groups = self.data.store.read(
            lambda c: [list(c.execute(sa.select(table))) for table in (rollout_run, rollout_meta, rollout_group)]
        )
        trained = {row.trajectory_id for row in metas if row.state == "trained"}
        assert trained == self.committed
        assert {row.trajectory_id for row in runs if row.used} == trained
        for group in groups:
            members = [row for row in metas if row.group_id == group.id and row.reason != "surplus"]
            late = [row for row in members if row.state == "expired"] if group.state == "expired" else []
            assert {row.state for row in members} <= {OF_GROUP[group.state]}
            assert group.members == len(members) or late
            if group.state in ("leased", "trained"):
                assert {row.lease_id for row in members} == {group.lease_id}


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
