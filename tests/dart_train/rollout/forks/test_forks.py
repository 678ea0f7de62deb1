from __future__ import annotations

import itertools
from collections import Counter

import pytest
from forked_play import service_plays
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_train.core.data_states import Reason, RolloutState
from dart_train.data.curation.fork_settings import ForkConfig, forked_steps
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.report.gather import fork_notes
from dart_train.rollout.forks.fork import can_fork
from dart_train.rollout.play.group_forks import GroupForks
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler
from dart_train.rollout.settings.rollout_config import TaskEntry

ONCE = ForkConfig(per_group=1, continuations=2)


def episode(*entropies: float | None, score: float = 0.0, name: str = "t", **fields) -> Trajectory:
    actions = ({"kind": "click", "x": 3, "y": 4},)
    steps = tuple(
        Step(response_ids=(1, 2), logprobs=(-0.5, -1.5), actions=actions, finish_reason="stop", entropy=entropy)
        for entropy in entropies
    )
    values = {"terminal": TerminalState.DONE, "score": score, "trajectory_id": name, "steps": steps, **fields}
    return Trajectory("fake/a", 1, **values)


# --- which step ---------------------------------------------------------------------------------------------------


def test_the_step_of_highest_mean_entropy_is_forked_and_never_a_first_one():
    group = [episode(9.0, 0.1, 0.3), episode(9.0, 0.7, 0.2), episode(9.0)]
    assert forked_steps(group, ONCE, can_fork, "k") == [(1, 1)]
    assert forked_steps(group, ForkConfig(per_group=3), can_fork, "k") == [(1, 1), (0, 2), (1, 2)]
    sampled = [episode(0.1, None), episode(0.1, 0.9)]  # an engine that does not know entropies: -mean of log-probs is 1
    assert forked_steps(sampled, ONCE, can_fork, "k") == [(0, 1)]
    assert forked_steps([episode(1.0, 2.0, deterministic=False)], ONCE, can_fork, "k") == []


def test_groups_are_forked_by_their_rewards_and_chance_is_drawn_from_the_key():
    failed, solved = [episode(1.0, 1.0)] * 2, [episode(1.0, 1.0, score=1.0)] * 2
    mixed = [failed[0], solved[0]]
    for when, expected in (("failed", (1, 0, 0)), ("no_signal", (1, 1, 0)), ("always", (1, 1, 1))):
        config = ForkConfig(per_group=1, when=when)
        assert tuple(len(forked_steps(group, config, can_fork, "k")) for group in (failed, solved, mixed)) == expected
    config, group = ForkConfig(per_group=1, rule="random"), [episode(*[1.0] * 5)] * 3
    found = Counter(forked_steps(group, config, can_fork, str(key))[0] for key in range(1200))
    assert set(found) == set(itertools.product(range(3), range(1, 5)))
    assert min(found.values()) > 60 and forked_steps(group, config, can_fork, "a") == forked_steps(
        group, config, can_fork, "a"
    )


def test_a_rule_of_ones_own_and_one_that_does_not_exist():
    config = ForkConfig(per_group=1, rule=f"{__name__}:Last")
    assert forked_steps([episode(1.0, 1.0, 1.0), episode(1.0, 1.0)], config, can_fork, "k") == [(0, 2)]
    with pytest.raises(ValueError, match="unknown fork rule 'entropi'"):
        ForkConfig(rule="entropi")
    with pytest.raises(ValueError, match="set rule to random"):
        ForkConfig(of="pool")


class Last:
    def score(self, episode: Trajectory, step: int, chance: float) -> float | None:
        return float(step)


# --- scheduling ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=200),
    st.integers(2, 5),
    st.integers(2, 6),
    st.integers(1, 60),
    st.integers(1, 2),
    st.integers(1, 2),
)
@settings(max_examples=150, deadline=None)
def test_forks_keep_the_budget_their_group_and_the_parents_seed(events, size, continuations, budget, depth, per_group):
    """Outcomes: 0 loses a rollout, 1 a fork's replay, 9 refuses admission, 2 succeeds; others fail."""
    config = ForkConfig(per_group=per_group, continuations=continuations, depth=depth)
    scheduler = Scheduler([TaskEntry(id="a"), TaskEntry(id="b")], group_size=size, budget=budget, max_attempts=2)
    forks = GroupForks(config, scheduler)
    running: dict[int, Assignment] = {}
    dealt: dict[str, list[Assignment]] = {}
    ended: list[tuple[Assignment, float | None]] = []

    def end(one: Assignment, outcome: int) -> None:
        score = float(outcome == 2) if outcome > 1 else None
        played = episode(0.5, 0.6, score=0.0, name=f"{one.group_key}/{one.n}/{one.attempt}")
        if score is None:
            if outcome == 1 and one.fork is not None:
                forks.lost(one)
            scheduler.lose(one)
            played = episode(name=played.trajectory_id)
        else:
            scheduler.complete(one)
        forks.ended(one, episode(0.5, 0.6, score=score, name=played.trajectory_id) if score is not None else played)
        ended.append((one, score))

    for worker, outcome in events:
        if (one := running.pop(worker, None)) is not None:
            end(one, outcome)
        if (new := scheduler.next(worker, admitted=outcome != 9)) is not None:
            running[worker] = new
            dealt.setdefault(new.group_key, []).append(new)
        assert scheduler.completed + scheduler.unfinished <= budget
    for one in running.values():
        end(one, 3)
    while (one := scheduler.next(0)) is not None:
        dealt.setdefault(one.group_key, []).append(one)
        end(one, 3)
    assert scheduler.exhausted and scheduler.running == 0 and not forks.groups.played
    names = {f"{one.group_key}/{one.n}/{one.attempt}": one for one, _ in ended}
    for members in dealt.values():
        first = members[0]
        assert len({(one.seed, one.task_id, one.fork) for one in members}) == 1
        assert first.group_size == (continuations if first.fork else size)
        if first.fork is not None:
            parent = names[first.fork.parent]
            assert (parent.seed, parent.task_id, parent.max_steps) == (first.seed, first.task_id, first.max_steps)
            assert first.fork.depth == (parent.fork.depth + 1 if parent.fork else 1) <= depth
            whole = [score for one, score in ended if one.group_key == parent.group_key and score is not None]
            assert len(whole) == parent.group_size and max(whole) == 0.0  # the group was played, and failed
    parents = Counter(members[0].fork.parent.rpartition("/")[0].rpartition("/")[0]
                      for members in dealt.values() if members[0].fork)  # fmt: skip
    assert max(parents.values(), default=0) <= per_group


def test_without_forks_nothing_is_kept_and_a_group_that_is_over_is_not_forked():
    scheduler = Scheduler([TaskEntry(id="a")], group_size=1)
    off, on = GroupForks(ForkConfig(), scheduler), GroupForks(ONCE, scheduler)
    first = scheduler.next(0)
    assert first is not None
    scheduler.end_groups([first.group_key])
    scheduler.lose(first)
    for forks in (off, on):
        forks.ended(first, episode(1.0, 2.0, terminal=TerminalState.INTERRUPTED, score=None))
        assert forks.made == 0 and not forks.groups.played
    assert scheduler.next(0).fork is None


# --- the service --------------------------------------------------------------------------------------------------


@pytest.fixture
def forked_data(tmp_path):
    config = CurationConfig(
        group_size=2, drop_no_signal=False, batches_ahead=None, max_staleness=None,
        forks=ForkConfig(per_group=1, continuations=3, tolerance=0.001),
    )  # fmt: skip
    with DataManager.open(f"sqlite:///{tmp_path}/dart.sqlite", tmp_path / "data", "run", config=config) as manager:
        yield manager


async def test_a_service_forks_failed_groups_within_its_budget_and_goes_on_counting(sockets, forked_data, make_policy):
    data = forked_data
    for budget in (12, 20):
        service = await service_plays("forked_play:Forked/long", data, sockets, make_policy, budget)
        assert service.scheduler.completed == budget and service.forks.given_up == {}
    whole = {one.trajectory_id: one for one in data.trajectories(source="rollout")}
    forked = list(data.trajectories(source="fork"))
    assert len(whole) + len(forked) == 20 and len(forked) >= 6
    assert sum(stats.rollouts for stats in data.read(statistics.task_stats, 32).values()) == len(whole)
    assert data.read(statistics.scored_forks) == len(forked)
    for child in forked:
        parent = whole[child.forked_from]
        assert child.group_key.startswith(parent.group_key + "+") and child.seed == parent.seed
        assert child.num_actions == parent.num_actions == 6 == child.fork_step + len(child.steps)
        assert child.steps[0].prompt_ids == parent.steps[child.fork_step].prompt_ids
        assert child.steps[0].image_hashes == parent.steps[child.fork_step].image_hashes
    assert data.ready()[0] == len({one.group_key for one in (*whole.values(), *forked)})
    assert data.read(statistics.forks) == statistics.ForkCounts(len({one.group_key for one in forked}), {}, len(forked))
    played = data.read(statistics.throughput, 0.0, 1e12)
    assert played.trajectories == 20 and played.actions == 120  # replayed ones included
    leased = data.lease(100, "trainer", at_least=1)
    for group in leased:
        assert len({(one.forked_from, one.fork_step) for one in group.trajectories}) == 1
        assert all(group.version(one) == 0 for one in group.trajectories)
    leased.commit(0)
    assert data.ready() == (0, 0)


async def test_a_budget_of_actions_counts_replayed_ones_over_all_lives(sockets, forked_data, make_policy):
    def played() -> int:
        return forked_data.read(statistics.actions_played)

    lives = []
    for budget in (60, 60, 90):
        await service_plays("forked_play:Forked/long", forked_data, sockets, make_policy, None, budget_actions=budget)
        lives.append(played())
    forked = list(forked_data.trajectories(source="fork"))
    assert 60 <= lives[0] == lives[1] < 60 + 4 * 6, "four workers end what they play"
    assert 90 <= lives[2] < 90 + 4 * 6 and played() == sum(one.num_actions for one in forked_data.trajectories())
    assert any(one.num_actions > len(one.steps) for one in forked)


async def test_forks_that_come_out_differently_are_given_up_counted_and_named(sockets, forked_data, make_policy):
    service = await service_plays("forked_play:Forked/changing", forked_data, sockets, make_policy, 12)
    assert 0 < sum(service.forks.given_up.values()) <= service.forks.made
    assert set(service.forks.given_up) == {"forked_play:Forked/changing"} and service.scheduler.completed == 12
    lost = [one for one in forked_data.trajectories() if one.lost_by == "fork"]
    assert lost and all(one.steps == () and "differs in" in one.detail and one.num_actions > 0 for one in lost)
    assert forked_data.census().dropped[Reason.FORK_DIFFERS] == len(lost)
    assert forked_data.read(statistics.scored_forks) == 0
    assert "in forks whose replay came out differently" in forked_data.diagnose() or forked_data.ready()[0]
    counts = forked_data.read(statistics.forks)
    assert counts.given_up == service.forks.given_up and counts.begun == sum(counts.given_up.values())
    (said,) = fork_notes(counts)
    assert said.endswith(f"a replay came out differently: forked_play:Forked/changing ({counts.begun}).")
    assert fork_notes(statistics.ForkCounts()) == []
    declared = await service_plays("forked_play:Forked/declared", forked_data, sockets, make_policy, 16)
    assert declared.forks.made == 0


def test_a_fork_that_is_given_up_takes_its_recorded_members_with_it(forked_data):
    def member(name: str, **fields) -> Trajectory:
        values = {"run_id": "run", "source": "fork", "forked_from": "p", "fork_step": 2, "group_key": "g+0", **fields}
        return episode(0.5, name=name, **values)

    gone = {"terminal": TerminalState.INTERRUPTED, "score": None, "lost_by": "fork", "steps": (), "num_actions": 2}
    assert forked_data.record(member("a"), expected=3) is RolloutState.RECORDED
    assert forked_data.record(member("b", **gone), expected=3) is RolloutState.REJECTED
    assert forked_data.record(member("c"), expected=3) is RolloutState.REJECTED  # came too late
    assert forked_data.record(member("d", group_key="h+0", **gone), expected=3) is RolloutState.REJECTED
    assert forked_data.record(member("e", group_key="h+0"), expected=3) is RolloutState.REJECTED
    assert forked_data.census().dropped == {"fork_differs": 3, "surplus": 2} and forked_data.ready() == (0, 0)
    assert forked_data.closed_groups(["g+0", "h+0"]) == ["g+0", "h+0"]
    assert forked_data.read(statistics.scored_forks) == 3  # they were played, whatever became of them
