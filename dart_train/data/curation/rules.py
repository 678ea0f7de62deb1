"""Which data is made and trained on: the switches, and the decisions on single trajectories, groups and episodes.

Sources: the DART paper (arXiv 2509.23866) for dynamic rollout number, dynamic trajectory length and the experience
pool.

Invariants:
    - Pure: nothing here touches a database, a clock or a random state; the only file that is read is that of known pass
      rates.
    - Each idea has its own switch; `CurationConfig.plain()` has all of them off.

Beside it: `drop_rules` drops trajectories and groups, `rollout_admission` says how much may be started, `grouping`
settles complete groups, `task_sampling` shares the rollouts among tasks, `experience_pool` keeps successes, and
`regrouping` makes new groups of what was left over.
The trainer selects steps by entropy (`top_entropy_quantile`, `entropy_mask_scope`): only it has entropies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import Field, field_validator, model_validator

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.difficulty import known_rates
from dart_gym.core.errors import DartGymError
from dart_gym.core.section import Section, constant
from dart_train.core.data_states import GroupState, Provenance, Reason
from dart_train.data.curation.drop_rules import SENTENCES, CurationRule, NoSignal, TooEasy, named_rules
from dart_train.data.curation.fork_settings import ForkConfig


class PoolSampling(StrEnum):
    """Which of a task's successes joins a group that failed."""

    NEWEST = "newest"
    UNIFORM = "uniform"
    LEAST_USED = "least_used"


class TaskSampling(StrEnum):
    """What a task's share of the rollouts depends on."""

    UNIFORM = "uniform"
    SUCCESS = "success"
    CURRICULUM = "curriculum"


class StalenessBy(StrEnum):
    """Which step of a trajectory says how stale it is. Its tokens are corrected one by one in any case."""

    OLDEST = "oldest"
    LAST = "last"
    NEWEST = "newest"


class CurationConfig(Section):
    """The switches of curation."""

    group_size: int = Field(8, ge=1, description="Rollouts per group, where the scheduler does not say otherwise.")
    max_staleness: int | None = Field(
        4, ge=0, description="Versions that a trajectory may lie behind the newest weights; null for no limit."
    )
    staleness_by: StalenessBy = Field(
        StalenessBy.OLDEST,
        description='Whose version counts for that: the "oldest" step\'s, the "last" step\'s (DART: the last response '
        'labels a trajectory), or the "newest" of any step.',
    )
    partial_after_s: float | None = Field(
        None,
        gt=0.0,
        description="Seconds after its first member from which a group is trained on with those that it has, so that "
        "one slow rollout does not hold back the others; null waits for all.",
    )
    partial_members: int = constant(2, "Least members of such a group.", ge=2)
    drop_no_signal: bool = Field(
        True, description="Leave out groups whose rewards are all equal: their advantages are zero."
    )
    drop_above: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="Leave out groups whose mean reward is this high or higher; null for none. DART's `acc_max`, "
        "0.7 on hard tasks.",
    )
    select_rollouts: int | None = Field(
        None,
        ge=2,
        description="Limit of members of a group to train on, successes and failures balanced; null for all.",
    )
    batch_groups: int = Field(12, ge=1, description="Groups in a batch, by which rollouts are held back.")
    leases_per_version: float = constant(
        1.0,
        "Batches that the trainer takes between two published versions; in a run that follows from "
        "`trainer.publish_steps`, `mini_batches` and `num_iterations`.",
        gt=0.0,
    )
    batches_ahead: float | None = Field(
        2.0,
        ge=1.0,
        description="Batches of rollouts that may wait or run before new ones are refused; null for no limit.",
    )
    success_window: int | None = Field(
        32,
        ge=1,
        description="How many of a task's latest rollouts make its success rate; null for as many as its latest group "
        "has (DART).",
    )
    retire_above: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="Success rate from which a task counts as mastered and is not played any more (ScaleRL: 0.9); null "
        "for none. A task must have had 16 rollouts for that, and the last task stays.",
    )
    retire_after: int = constant(16, "Rollouts that a task must have had to count as mastered.", ge=1)
    dynamic_rollouts: bool = Field(False, description="Fewer rollouts for tasks that mostly succeed.")
    dynamic_rollouts_threshold: float = Field(
        0.6, gt=0.0, le=1.0, description="Success rate up to which a group keeps its full size."
    )
    min_rollouts: int = Field(2, ge=1, description="Least rollouts per group.")
    dynamic_length: bool = Field(False, description="Cap an episode's steps by the task's longest success.")
    length_margin: int = constant(1, "Steps allowed beyond the longest success.", ge=0)
    min_length: int = constant(2, "Least cap on an episode's steps.", ge=1)
    length_growth: float = constant(
        1.5, "Factor on the cap after attempts that all ended at it; with 1.0 it never grows.", ge=1.0
    )
    experience_pool: bool = Field(
        False, description="Let one success from the pool join a group that failed as a whole."
    )
    pool_sampling: PoolSampling = Field(
        PoolSampling.NEWEST,
        description="Which success joins: the newest, any with equal chances, or one of those used least.",
    )
    pool_sources: tuple[Provenance, ...] = Field(
        (Provenance.ORACLE, Provenance.HUMAN, Provenance.HINTED),
        description='Provenance of what may join. With "rollout", every success of the run itself goes into the pool.',
    )
    task_sampling: TaskSampling = Field(
        TaskSampling.UNIFORM,
        description='Shares of the tasks: "uniform" (their configured weights), "success" (more for those that '
        'succeed about half the time), "curriculum" (easier bands first).',
    )
    sampling_floor: float = constant(
        0.1,
        "Least share of a task, relative to its configured weight; above 0, so that none is forgotten.",
        gt=0.0,
        le=1.0,
    )
    difficulty: str | None = Field(
        None,
        description="A suite, or a file, with known pass rates (dart-agent eval --difficulty): what a task that was "
        "never tried begins with.",
    )
    difficulty_of: str | None = Field(None, description="The policy whose rates they are; null for the only one.")
    replay_leftovers: bool = Field(
        False,
        description="Make new groups, within the staleness window, of trajectories that came too late for theirs, "
        "were left out of it, or whose group never filled.",
    )
    leftover_after_s: float = constant(
        600.0, "Seconds without a new member after which a group counts as one that will not fill.", gt=0.0
    )
    forks: ForkConfig = ForkConfig()
    rules: tuple[str, ...] = Field(
        (),
        description="Further rules that drop trajectories or groups: names of installed packages, or `module:Class`.",
    )

    @model_validator(mode="after")
    def _rates_can_be_read(self) -> CurationConfig:
        if self.difficulty is not None:
            try:
                known_rates(self.difficulty, self.difficulty_of)
            except DartGymError as error:
                raise ValueError(f"difficulty: {error}") from None
        return self

    @field_validator("rules")
    @classmethod
    def _rules_can_be_used(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        named_rules(names)
        return names

    @classmethod
    def plain(cls, group_size: int = 8) -> CurationConfig:
        """Return the settings under which nothing is curated: every complete group is trained on, as in plain GRPO."""
        return cls(group_size=group_size, max_staleness=None, drop_no_signal=False, batches_ahead=None)

    @property
    def settles_groups(self) -> bool:
        """Return whether a complete group needs more than a look at its least and greatest reward."""
        return (
            self.experience_pool or self.select_rollouts is not None or self.drop_above is not None or bool(self.rules)
        )

    def group_rules(self) -> list[CurationRule]:
        """Return the rules that may drop a complete group, in the order in which they are asked."""
        switched = [NoSignal()] if self.drop_no_signal else []
        strict = [TooEasy(self.drop_above)] if self.drop_above is not None else []
        return [*switched, *strict, *named_rules(self.rules)]

    def dropped_by(self, trajectory: Trajectory) -> str:
        """Return the name of the rule that leaves a trajectory out of its group; "" if none does."""
        return next((rule.name for rule in named_rules(self.rules) if rule.drops(trajectory)), "")

    def sentences(self) -> dict[str, str]:
        """Return what a diagnosis says of trajectories, by where they stand or which rule dropped them."""
        return {**SENTENCES, **{rule.name: rule.sentence for rule in named_rules(self.rules)}}


def staleness_version(trajectory: Trajectory, by: StalenessBy) -> int:
    """Return the version from which a trajectory's staleness is counted; 0 without steps."""
    if by is StalenessBy.OLDEST or not trajectory.steps:
        return trajectory.oldest_version
    return trajectory.newest_version if by is StalenessBy.NEWEST else trajectory.steps[-1].version[1]


def untrainable(trajectory: Trajectory) -> str:
    """Return why a trajectory of the policy must not be trained on; "" if it may. An error is never a reward of 0."""
    if not trajectory.terminal.trainable:
        return f"ended in {trajectory.terminal}"
    if trajectory.score is None:
        return "has no reward"
    if not trajectory.steps:
        return "has no steps"
    return ""


def judge_group(
    members: int,
    expected: int,
    reward_min: float,
    reward_max: float,
    *,
    drop_no_signal: bool = True,
    taught: int = 0,
) -> tuple[GroupState, Reason | None]:
    """Return the state of a group by its fresh, trainable members, and the reason if it is "rejected".

    A group with equal rewards is still trained on if a teacher `taught` some of its members.
    """
    if members < expected:
        return GroupState.OPEN, None
    if drop_no_signal and reward_min == reward_max and not taught:
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
    """
    if success_rate is None or success_rate <= threshold:
        return maximum
    return min(maximum, max(minimum, int(9 / success_rate - 7 + 1e-9)))


def length_cap(
    longest_success: int | None,
    maximum: int,
    *,
    margin: int = 1,
    minimum: int = 2,
    cut_off_at: int | None = None,
    growth: float = 1.5,
) -> int:
    """Return the step limit of a task's next episode (DART's dynamic trajectory length).

    The paper caps at the longest success so far and says no more. Here the margin lets a task become longer again, and
    a cap that cuts off every attempt grows until some attempt ends by itself: an early short success does not lock out
    a task that takes longer later (another seed, a slower page).
    """
    if longest_success is None:
        return maximum
    cap = longest_success + margin
    if cut_off_at is not None and growth > 1.0:
        cap = max(cap, cut_off_at + 1, math.ceil(cut_off_at * growth - 1e-9))
    return min(maximum, max(minimum, cap))


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a task's next group.

    Attributes:
        share: factor on the task's configured weight.
        admitted: whether it may be opened now; a task that is mastered (`retire_above`) may not.
    """

    group_size: int
    max_steps: int | None
    share: float = 1.0
    admitted: bool = True


def plan(
    config: CurationConfig,
    max_steps: int | None,
    *,
    success_rate: float | None,
    longest_success: int | None,
    cut_off_at: int | None = None,
    share: float = 1.0,
    admitted: bool = True,
) -> Plan:
    """Return how a task's next group is rolled out, by the switches that are on; see the functions above."""
    size, limit = config.group_size, max_steps
    if config.dynamic_rollouts:
        threshold, least = config.dynamic_rollouts_threshold, config.min_rollouts
        size = rollouts_for(success_rate, size, threshold=threshold, minimum=least)
    if config.dynamic_length and limit is not None:
        limit = length_cap(
            longest_success,
            limit,
            margin=config.length_margin,
            minimum=config.min_length,
            cut_off_at=cut_off_at,
            growth=config.length_growth,
        )
    return Plan(size, limit, share, admitted)


@dataclass(frozen=True, slots=True)
class Census:
    """Number of trajectories by state; every trajectory is counted once.

    Attributes:
        eligible: trajectories in complete, fresh groups that can be leased now.
        dropped: trajectories by the rule or reason that dropped them; rules that dropped none are left out.
        oldest_allowed: the oldest version that may be trained on; None: any.
    """

    eligible: int = 0
    eligible_groups: int = 0
    unfinished: int = 0
    leased: int = 0
    trained: int = 0
    pooled: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    oldest_allowed: int | None = None

    @property
    def total(self) -> int:
        """All trajectories."""
        return sum(value for name, value in self.parts().items() if name != "eligible_groups")

    def parts(self) -> dict[str, int]:
        """Return all counts by name; all built-in names are included."""
        standing = ("eligible", "eligible_groups", "unfinished", "leased", "trained", "pooled")
        return {**dict.fromkeys(SENTENCES, 0), **{name: getattr(self, name) for name in standing}, **self.dropped}
