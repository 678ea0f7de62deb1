"""Decisions about complete groups: add a success of the pool, choose a balanced part, or drop the group.

`settle_group` decides and is pure; `settle` carries its decision out within the transaction that completed the group.

Invariants:
    - The order is DART's: the pool first, then the choice of members, then the rules that drop a group.
    - Exactly one success of the pool joins, and only a group that failed as a whole; one failure leaves for it, so the
      group keeps its size.
    - A choice of members keeps at least one of the better and one of the worse, where there are both.
    - Whatever is not just "ready" is written down in `curation_decision`, with the values that decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dart_train.core.data_states import FORK_SOURCE, GroupState, Reason, RolloutState
from dart_train.data.curation import experience_pool
from dart_train.data.curation.drop_rules import Member
from dart_train.data.curation.experience_pool import Success
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.store.schema import curation_decision, group_injection, rollout_group, rollout_meta

_meta, _group = rollout_meta.c, rollout_group.c


@dataclass(frozen=True, slots=True)
class Settlement:
    """Decision about a group.

    Attributes:
        rule: name of the rule that decided; "" if none had to.
        replaced: the failure that leaves for it.
        left_out: those that the choice of members left out.
        rewards: the rewards of all that stay, the injected one last.
    """

    state: GroupState
    reason: str | None
    rule: str
    injected: Success | None
    replaced: Member | None
    members: tuple[Member, ...]
    left_out: tuple[Member, ...]
    rewards: tuple[float, ...]


def settle_group(
    members: Sequence[Member], config: CurationConfig, successes: Sequence[Success], key: str
) -> Settlement:
    """Decide on a complete group of fresh members in the order of recording; chance is drawn from its key."""
    staying = list(members)
    injected = replaced = None
    if config.experience_pool and failed_as_a_whole([member.reward for member in members]):
        injected = experience_pool.choose(successes, config.pool_sampling, key)
        if injected is not None:
            replaced = staying.pop(0)  # the oldest
    left_out: list[Member] = []
    if config.select_rollouts is not None:
        room = config.select_rollouts - (injected is not None)
        chosen = balanced([member.reward for member in staying], room)
        left_out = [member for index, member in enumerate(staying) if index not in chosen]
        staying = [member for index, member in enumerate(staying) if index in chosen]
    joined = [Member(injected.rollout_id, injected.reward, 0, injected.num_steps)] if injected else []
    rewards = tuple(member.reward for member in (*staying, *joined))
    reason = next((rule.name for rule in config.group_rules() if rule.drops_group([*staying, *joined])), None)
    state = GroupState.READY if reason is None else GroupState.REJECTED
    rule = reason or ""
    if not rule and injected:
        rule = "experience_pool"
    elif not rule and left_out:
        rule = "select_rollouts"
    return Settlement(state, reason, rule, injected, replaced, tuple(staying), tuple(left_out), rewards)


def failed_as_a_whole(rewards: Sequence[float]) -> bool:
    """Return whether no member has any reward."""
    return bool(rewards) and max(rewards) <= 0.0


def balanced(rewards: Sequence[float], size: int) -> set[int]:
    """Return the indices of at most `size` members: as many of the better as of the worse half, newest first.

    Rewards above the middle between least and greatest are better, the others worse, so graded rewards count too. Where
    one side has too few, the other fills up.
    """
    if len(rewards) <= size:
        return set(range(len(rewards)))
    middle = (min(rewards) + max(rewards)) / 2
    better = [index for index, reward in enumerate(rewards) if reward > middle]
    worse = [index for index, reward in enumerate(rewards) if reward <= middle]
    take = min(len(better), max(size // 2, size - len(worse)))
    newest_better, newest_worse = better[len(better) - take :], worse[len(worse) - (size - take) :]
    return {*newest_better, *newest_worse}


def settle(connection: sa.Connection, run_id: str, group_id: int, config: CurationConfig, now: float) -> Settlement:
    """Decide on a group that got its last member, in the transaction in which it did, and write that down."""
    group = connection.execute(sa.select(rollout_group).where(_group.id == group_id)).one()
    reward = sa.func.coalesce(_meta.training_reward, _meta.reward).label("reward")
    figures = (_meta.rollout_id, reward, _meta.staleness_version, _meta.num_steps, _meta.taught)
    mine = (_meta.group_id == group_id) & (_meta.state == RolloutState.RECORDED.value)
    rows = connection.execute(
        sa.select(*figures, _meta.reason, _meta.source).where(mine).order_by(_meta.rollout_id)
    ).all()
    for row in rows:
        if row.reason:  # a rule dropped it when it was recorded
            _reject(connection, [row.rollout_id], row.reason)
    members = [Member(row[0], row.reward or 0.0, *row[2:5]) for row in rows if not row.reason]
    whole = all(row.source != FORK_SOURCE for row in rows)  # a success from the beginning is no continuation of a fork
    wanted = whole and config.experience_pool and failed_as_a_whole([member.reward for member in members])
    successes = experience_pool.successes(connection, run_id, group.task_id, config.pool_sources) if wanted else []
    if members:
        settled = settle_group(members, config, successes, group.group_key)
    else:
        settled = Settlement(GroupState.REJECTED, rows[0].reason, rows[0].reason, None, None, (), (), ())
    if settled.injected is not None and settled.replaced is not None:
        _inject(connection, group_id, settled.injected, settled.replaced, now)
    _reject(connection, [member.rollout_id for member in settled.left_out], Reason.UNSELECTED)
    if settled.reason is not None:
        _reject(connection, [member.rollout_id for member in settled.members], settled.reason)
    connection.execute(
        rollout_group.update()
        .where(_group.id == group_id)
        .values(
            members=len(settled.rewards),
            reward_min=min(settled.rewards, default=0.0),
            reward_max=max(settled.rewards, default=0.0),
            oldest_version=min((member.oldest_version for member in settled.members), default=group.oldest_version),
            state=settled.state.value,
            reason=settled.reason or "",
            taught=sum(bool(member.taught) for member in settled.members),
        )
    )
    if settled.rule:
        decide(
            connection,
            run_id,
            settled.rule,
            "injected" if settled.rule == "experience_pool" else settled.state.value,
            task_id=group.task_id,
            group_id=group_id,
            now=now,
            rewards=list(settled.rewards),
            injected=settled.injected.trajectory_id if settled.injected else None,
            left_out=len(settled.left_out),
        )
    return settled


def decide(
    connection: sa.Connection,
    run_id: str,
    rule: str,
    verdict: str,
    *,
    task_id: str = "",
    group_id: int | None = None,
    now: float,
    **details: Any,
) -> None:
    """Write a decision of curation down; `details` are the values that decided, as JSON."""
    connection.execute(
        curation_decision.insert().values(
            run_id=run_id,
            rule=rule,
            verdict=verdict,
            task_id=task_id,
            group_id=group_id,
            details=details,
            decided_at=now,
        )
    )


def injected_into(connection: sa.Connection, group_ids: Sequence[int]) -> dict[int, list[str]]:
    """Return the ids of the pool's trajectories that joined groups, by the groups' row ids."""
    query = (
        sa.select(group_injection.c.group_id, _meta.trajectory_id)
        .join(rollout_meta, _meta.rollout_id == group_injection.c.rollout_id)
        .where(group_injection.c.group_id.in_(group_ids))
        .order_by(group_injection.c.rollout_id)
    )
    found: dict[int, list[str]] = {}
    for group_id, trajectory_id in connection.execute(query):
        found.setdefault(group_id, []).append(trajectory_id)
    return found


def _inject(connection: sa.Connection, group_id: int, success: Success, replaced: Member, now: float) -> None:
    connection.execute(
        group_injection.insert().values(
            group_id=group_id, rollout_id=success.rollout_id, replaced_id=replaced.rollout_id, injected_at=now
        )
    )
    experience_pool.mark_used(connection, success.rollout_id, now)
    _reject(connection, [replaced.rollout_id], Reason.REPLACED)


def _reject(connection: sa.Connection, rollout_ids: Sequence[int], reason: str) -> None:
    if rollout_ids:
        connection.execute(
            rollout_meta.update()
            .where(_meta.rollout_id.in_(rollout_ids))
            .values(state=RolloutState.REJECTED.value, reason=str(reason))
        )
