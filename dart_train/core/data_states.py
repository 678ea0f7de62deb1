"""Where trajectories, groups, leases and checkpoints stand, and why: the words of the database, without SQL."""

from enum import StrEnum

POLICY_SOURCE = "rollout"  # of the trajectories that the policy that is trained played from their beginning
FORK_SOURCE = "fork"  # of those that continue another one
POLICY_SOURCES = (POLICY_SOURCE, FORK_SOURCE)  # they form groups and are trained on by reinforcement
ORACLE_SOURCE = "oracle"  # of demonstrations
SHOWN_MARK = "#shown"  # ends the group key of a page that the oracle played because a whole group had failed on it
RULE_LENGTH = 64  # of the name of a rule of curation


class RolloutState(StrEnum):
    """Where a trajectory stands."""

    RECORDED = "recorded"
    LEASED = "leased"
    TRAINED = "trained"
    EXPIRED = "expired"
    POOLED = "pooled"  # not made by the policy being trained: demonstrations, the experience pool
    REJECTED = "rejected"


class GroupState(StrEnum):
    """Where a group of trajectories stands."""

    OPEN = "open"
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    EXPIRED = "expired"
    REJECTED = "rejected"


class Reason(StrEnum):
    """The built-in reasons for which a trajectory or group is rejected or expired; a rule's name is another one."""

    STALE = "stale"
    NO_SIGNAL = "no_signal"
    UNTRAINABLE = "untrainable"  # environment, engine or evaluation error
    SURPLUS = "surplus"  # came when its group was complete already
    CORRUPT = "corrupt"
    TOO_EASY = "too_easy"  # its group's mean reward reached `drop_above`
    REPLACED = "replaced"  # a failure whose place a success of the pool took
    UNSELECTED = "unselected"  # a balanced selection of its group left it out
    FORK_DIFFERS = "fork_differs"  # the replayed beginning of a fork came out differently
    INCOMPLETE = "incomplete"  # a group that never filled, whose members joined another one


class LeaseState(StrEnum):
    """Where a lease stands."""

    HELD = "held"
    COMMITTED = "committed"
    RELEASED = "released"
    EXPIRED = "expired"
    UNDONE = "undone"  # committed, but its holder went on from older weights: its groups can be leased again


class Provenance(StrEnum):
    """Where a success of the experience pool comes from."""

    ROLLOUT = "rollout"  # of the policy itself, earlier in the run
    ORACLE = "oracle"
    HUMAN = "human"
    HINTED = "hinted"  # the policy was told how; the hint is stripped from what is stored


class CheckpointStatus(StrEnum):
    """The published values of `checkpoint.status`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    DEPRECATED = "DEPRECATED"
