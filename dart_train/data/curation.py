"""Which data is made and trained on: pure decisions over plain values, each with its own switch.

Sources: the DART paper (arXiv 2509.23866) for dynamic rollout number, dynamic trajectory length and the experience
pool. Nothing here touches a database, a file or a clock. How much may be started is in `admission.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from dart_train.data.schema import GroupState, Reason
from dart_train.trajectory import Trajectory


class CurationConfig(BaseModel):
    """The switches of curation.

    Attributes:
        group_size: rollouts per group, where the scheduler does not say otherwise.
        max_staleness: versions that a trajectory's oldest step may lie behind the newest checkpoint; None: no limit.
        drop_no_signal: leave out groups whose rewards are all equal: their advantages are zero.
        batch_groups: groups in a batch, for back-pressure.
        batches_ahead: how many batches of rollouts may wait or run before new ones are refused; None: no limit.
        task_groups_ahead: groups of one task that may wait for the trainer; None: no limit.
        success_window: how many of a task's latest rollouts make its success rate.
        dynamic_rollouts: fewer rollouts for tasks that mostly succeed.
        dynamic_rollouts_threshold: success rate up to which a group keeps its full size.
        min_rollouts: least rollouts per group.
        dynamic_length: cap an episode's steps by the task's longest success.
        length_margin: steps allowed beyond the longest success.
        min_length: least cap.
        experience_pool: let one success from the pool join a group that failed as a whole.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    group_size: int = Field(default=8, ge=1)
    max_staleness: int | None = Field(default=4, ge=0)
    drop_no_signal: bool = True
    batch_groups: int = Field(default=12, ge=1)
    batches_ahead: float | None = Field(default=2.0, ge=1.0)
    task_groups_ahead: int | None = Field(default=None, ge=1)
    success_window: int = Field(default=32, ge=1)
    dynamic_rollouts: bool = False
    dynamic_rollouts_threshold: float = Field(default=0.6, gt=0.0, le=1.0)
    min_rollouts: int = Field(default=2, ge=1)
    dynamic_length: bool = False
    length_margin: int = Field(default=1, ge=0)
    min_length: int = Field(default=2, ge=1)
    experience_pool: bool = False


def untrainable(trajectory: Trajectory) -> str:
    """Return why a trajectory of the policy must not be trained on; "" if it may.

    An error is never a reward of 0: what the environment, an engine or the evaluator broke is left out.
    """
    if not trajectory.terminal.trainable:
        return f"ended in {trajectory.terminal}"
    if trajectory.reward is None:
        return "has no reward"
    if not trajectory.steps:
        return "has no steps"
    return ""


def judge_group(
    members: int, expected: int, reward_min: float, reward_max: float, *, drop_no_signal: bool = True
) -> tuple[GroupState, Reason | None]:
    """Return the state of a group whose members are all fresh, and the reason if that is "rejected".

    Args:
        members: trainable members so far.
        expected: members that complete it.
        reward_min: least reward of a member.
        reward_max: greatest reward of a member.
        drop_no_signal: the switch.
    """
    if members < expected:
        return GroupState.OPEN, None
    if drop_no_signal and reward_min == reward_max:
        return GroupState.REJECTED, Reason.NO_SIGNAL
    return GroupState.READY, None


def oldest_allowed(newest_version: int | None, max_staleness: int | None) -> int | None:
    """Return the oldest weight version that may still be trained on; None: any (no checkpoint yet, or no limit)."""
    if newest_version is None or max_staleness is None:
        return None
    return newest_version - max_staleness


def rollouts_for(success_rate: float | None, maximum: int, *, threshold: float = 0.6, minimum: int = 2) -> int:
    """Return how many rollouts a task's next group gets (DART's dynamic rollout number).

    Full size up to the threshold, then `int(9 / rate - 7)`: with 8 rollouts 8, 6, 5, 4, 3, 2 at success rates
    0.6, 0.65, 0.7, 0.8, 0.9, 1.0. Fewer rollouts go to what already succeeds.

    Args:
        success_rate: mean reward of the task's latest rollouts; None if there are none.
        maximum: rollouts of a full group.
        threshold: rate up to which a group is full.
        minimum: least number of rollouts.
    """
    if success_rate is None or success_rate <= threshold:
        return maximum
    return min(maximum, max(minimum, int(9 / success_rate - 7 + 1e-9)))


def length_cap(longest_success: int | None, maximum: int, *, margin: int = 1, minimum: int = 2) -> int:
    """Return the step limit of a task's next episode (DART's dynamic trajectory length).

    The paper caps at the longest success so far. The margin lets a task become longer again; the paper does not say.

    Args:
        longest_success: steps of the task's longest success; None before the first one.
        maximum: the general limit.
        margin: steps allowed beyond the longest success.
        minimum: least limit.
    """
    if longest_success is None:
        return maximum
    return min(maximum, max(minimum, longest_success + margin))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a task's next group is rolled out.

    Attributes:
        group_size: its rollouts.
        max_steps: their step limit; None for the task's own.
    """

    group_size: int
    max_steps: int | None


def plan(
    config: CurationConfig, max_steps: int | None, *, success_rate: float | None, longest_success: int | None
) -> Plan:
    """Return how a task's next group is rolled out, by the switches that are on.

    Args:
        config: the switches.
        max_steps: the general step limit; without one, length is left to the task.
        success_rate: mean reward of the task's latest rollouts; None if there are none.
        longest_success: steps of the task's longest success; None before the first one.
    """
    size, limit = config.group_size, max_steps
    if config.dynamic_rollouts:
        threshold, least = config.dynamic_rollouts_threshold, config.min_rollouts
        size = rollouts_for(success_rate, size, threshold=threshold, minimum=least)
    if config.dynamic_length and limit is not None:
        limit = length_cap(longest_success, limit, margin=config.length_margin, minimum=config.min_length)
    return Plan(size, limit)


@dataclass(frozen=True, slots=True)
class PoolInjection:
    """A success from the pool that takes the place of one failure.

    Attributes:
        replace: index of the group's member that leaves.
        trajectory_id: the one of the pool that joins.
    """

    replace: int
    trajectory_id: str


def pool_injection(
    rewards: Sequence[float], ages: Sequence[float], pool: Sequence[tuple[float, str]]
) -> PoolInjection | None:
    """Return which success of the pool joins a group, and for which member; None if none should or can.

    Only a group that failed as a whole gets one: the newest of the pool replaces the group's oldest member, so that the
    group keeps its size.

    Args:
        rewards: of the group's members.
        ages: when each member was recorded, Unix time.
        pool: (recorded at, trajectory id) of the task's successes.
    """
    if not rewards or max(rewards) > 0.0 or not pool:
        return None
    return PoolInjection(replace=min(range(len(ages)), key=ages.__getitem__), trajectory_id=max(pool)[1])


@dataclass(frozen=True, slots=True)
class Census:
    """How many trajectories stand where; every trajectory is counted once.

    Attributes:
        eligible: in complete, fresh groups that can be leased now.
        eligible_groups: the number of those groups.
        stale: older than the staleness window.
        no_signal: in groups without reward variance.
        unfinished: in groups that lack members.
        leased: with a trainer now.
        trained: done.
        pooled: demonstrations and the experience pool.
        untrainable: ended in an environment, engine or evaluation error.
        surplus: came when their group was complete already.
        corrupt: in groups with a damaged member.
        oldest_allowed: the oldest version that may be trained on; None: any.
    """

    eligible: int = 0
    eligible_groups: int = 0
    stale: int = 0
    no_signal: int = 0
    unfinished: int = 0
    leased: int = 0
    trained: int = 0
    pooled: int = 0
    untrainable: int = 0
    surplus: int = 0
    corrupt: int = 0
    oldest_allowed: int | None = None

    @property
    def total(self) -> int:
        """All trajectories."""
        return sum(value for name, value in self.parts().items() if name != "eligible_groups")

    def parts(self) -> dict[str, int]:
        """Return the counts by name."""
        names = [name for name in self.__slots__ if name != "oldest_allowed"]
        return {name: getattr(self, name) for name in names}


def explain(census: Census) -> str:
    """Say why not more can be leased: "0 of 812 trajectories eligible: 640 older than version 7, ..."."""
    if census.total == 0:
        return "no trajectories recorded yet: is the rollout service running, and with this run_id and database?"
    phrases: Mapping[str, int] = {
        f"older than version {census.oldest_allowed}": census.stale,
        "in groups with no variance": census.no_signal,
        "in unfinished groups": census.unfinished,
        "leased now": census.leased,
        "trained already": census.trained,
        "demonstrations": census.pooled,
        "ended in an environment, engine or evaluation error": census.untrainable,
        "beyond their group's size": census.surplus,
        "in groups with damaged files": census.corrupt,
    }
    groups = f" in {census.eligible_groups} groups" if census.eligible else ""
    reasons = ", ".join(f"{count} {phrase}" for phrase, count in phrases.items() if count)
    text = f"{census.eligible} of {census.total} trajectories eligible{groups}"
    return f"{text}: {reasons}" if reasons else text
