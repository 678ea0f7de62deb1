"""New groups of what was left over: trajectories that came too late, were not chosen, or whose group never filled.

DART's filter keeps rows that no batch took as long as their version is in the window, and groups them by task; so does
this, but only what the ordinary groups cannot use any more.

Invariants:
    - Only what is inside the staleness window, has files, and was never trained on.
    - A trajectory is in one group at a time: joining a new one is leaving the old one.
    - A new group has its task's present size and both better and worse members; until there are, leftovers wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from dart_train.core.data_states import FORK_SOURCE, GroupState, Reason, RolloutState
from dart_train.data.curation.grouping import balanced, decide
from dart_train.data.store.schema import rollout_group, rollout_meta, rollout_run

_meta, _group = rollout_meta.c, rollout_group.c
_LEFT = (Reason.SURPLUS.value, Reason.UNSELECTED.value)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A trajectory that no group can use as it is: its row, reward, oldest version, and the group that it leaves."""

    rollout_id: int
    reward: float
    oldest_version: int
    group_id: int | None = None


def regroup(leftovers: Sequence[Leftover], size: int) -> list[tuple[Leftover, ...]]:
    """Return groups of `size` made of one task's leftovers, balanced and newest first; the rest waits. Pure."""
    groups: list[tuple[Leftover, ...]] = []
    rest = list(leftovers)
    while size >= 2 and len(rest) >= size:
        rewards = [item.reward for item in rest]
        if min(rewards) == max(rewards):
            break
        chosen = balanced(rewards, size)
        groups.append(tuple(item for index, item in enumerate(rest) if index in chosen))
        rest = [item for index, item in enumerate(rest) if index not in chosen]
    return groups


def regroup_rows(
    connection: sa.Connection,
    run_id: str,
    size_of: Callable[[str], int],
    *,
    oldest: int | None,
    waited_since: float,
    now: float,
) -> int:
    """Make groups that can be leased of a run's leftovers; returns how many.

    `oldest` is the oldest version that may be trained on, None for any; an unfinished group is given up once its newest
    member is older than `waited_since`.
    """
    made = 0
    for task_id, leftovers in _leftovers(connection, run_id, oldest, waited_since).items():
        for group in regroup(leftovers, size_of(task_id)):
            _make_group(connection, run_id, task_id, group, now)
            made += 1
    return made


def _leftovers(
    connection: sa.Connection, run_id: str, oldest: int | None, waited_since: float
) -> dict[str, list[Leftover]]:
    rejected = (_meta.state == RolloutState.REJECTED.value) & _meta.reason.in_(_LEFT)
    open_groups = (_group.run_id == run_id) & (_group.state == GroupState.OPEN.value)
    dead = (
        sa.select(_group.id)
        .join(rollout_meta, _meta.group_id == _group.id)
        .where(open_groups)
        .group_by(_group.id)
        .having(sa.func.max(_meta.created_at) < waited_since)
    )
    stranded = (_meta.state == RolloutState.RECORDED.value) & (_meta.reason == "") & _meta.group_id.in_(dead)
    query = (
        sa.select(_meta.task_id, _meta.rollout_id, _meta.reward, _meta.staleness_version, _meta.group_id)
        .join(rollout_run, rollout_run.c.id == _meta.rollout_id)
        .where(_meta.run_id == run_id, rejected | stranded, rollout_run.c.split_dir.is_not(None))
        .where(_meta.source != FORK_SOURCE)  # only continuations of one fork are compared with one another
        .order_by(_meta.rollout_id)
        .with_for_update()  # so that no other process groups them
    )
    if oldest is not None:
        query = query.where(_meta.staleness_version >= oldest)
    found: dict[str, list[Leftover]] = {}
    for task_id, rollout_id, reward, version, group_id in connection.execute(query):
        found.setdefault(task_id, []).append(Leftover(rollout_id, reward or 0.0, version, group_id))
    return found


def _make_group(connection: sa.Connection, run_id: str, task_id: str, members: Sequence[Leftover], now: float) -> None:
    rewards = [item.reward for item in members]
    first = members[0].rollout_id
    key = connection.execute(
        rollout_group.insert().values(
            run_id=run_id,
            group_key=f"replay#{first}.{now:.3f}",
            task_id=task_id,
            expected=len(members),
            members=len(members),
            reward_min=min(rewards),
            reward_max=max(rewards),
            oldest_version=min(item.oldest_version for item in members),
            state=GroupState.READY.value,
            reason="",
            created_at=now,
        )
    ).inserted_primary_key
    assert key is not None  # SQLAlchemy's type: a single-row insert always has one
    connection.execute(
        rollout_meta.update()
        .where(_meta.rollout_id.in_([item.rollout_id for item in members]))
        .values(group_id=key[0], state=RolloutState.RECORDED.value, reason="")
    )
    _close_unfinished(connection, {item.group_id for item in members if item.group_id is not None})
    decide(
        connection, run_id, "replay_leftovers", "grouped", task_id=task_id, group_id=key[0], now=now, rewards=rewards
    )


def _close_unfinished(connection: sa.Connection, group_ids: set[int]) -> None:
    """Close the unfinished ones among groups that members left; their remaining members are left over as well."""
    unfinished = _group.id.in_(group_ids) & (_group.state == GroupState.OPEN.value)
    closing = list(connection.execute(sa.select(_group.id).where(unfinished)).scalars())
    closed = {"state": GroupState.REJECTED.value, "reason": Reason.INCOMPLETE.value}
    connection.execute(rollout_group.update().where(_group.id.in_(closing)).values(closed))
    remaining = _meta.group_id.in_(closing) & (_meta.state == RolloutState.RECORDED.value)
    connection.execute(rollout_meta.update().where(remaining, _meta.reason == "").values(reason=Reason.SURPLUS.value))
    connection.execute(rollout_meta.update().where(remaining).values(state=RolloutState.REJECTED.value))
