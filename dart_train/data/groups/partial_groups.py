"""Groups that are not waited for any longer, and what their rollouts are told. Functions of one transaction each.

A group's slow last rollouts would hold back the others until they are stale. After `partial_after_s` it is settled with
the members that it has: advantages are relative to these members. Trajectories that arrive later are surplus, as for an
expired group, so its rollouts are not continued (`closed`).
"""

from collections.abc import Sequence

import sqlalchemy as sa

from dart_train.core.data_states import GroupState, RolloutState
from dart_train.data.curation import grouping
from dart_train.data.curation.rules import CurationConfig, judge_group
from dart_train.data.store.schema import rollout_group, rollout_meta

_group, _meta = rollout_group.c, rollout_meta.c
_KEYS_AT_ONCE = 500
_GROUPS_AT_ONCE = 100


def closed(connection: sa.Connection, run_id: str, keys: Sequence[str]) -> list[str]:
    """Return the known groups among the given ones that take no more members."""
    found: list[str] = []
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        mine = (_group.run_id == run_id) & _group.group_key.in_(keys[start : start + _KEYS_AT_ONCE])
        query = sa.select(_group.group_key).where(mine, _group.state != GroupState.OPEN.value)
        found += connection.execute(query).scalars()
    return found


def close_late(
    connection: sa.Connection, run_id: str, config: CurationConfig, *, oldest: int | None, moment: float
) -> int:
    """Settle groups with their present members, `partial_after_s` after the first was recorded; return how many."""
    assert config.partial_after_s is not None  # else nobody asks
    late = (_group.run_id == run_id) & (_group.state == GroupState.OPEN.value)
    late &= (_group.members >= config.partial_members) & (_group.created_at <= moment - config.partial_after_s)
    if oldest is not None:
        late &= _group.oldest_version >= oldest
    query = sa.select(rollout_group).where(late).order_by(_group.id).limit(_GROUPS_AT_ONCE)
    rows = list(connection.execute(query.with_for_update(skip_locked=True)))
    for row in rows:
        details = {"members": row.members, "expected": row.expected}
        names = {"task_id": row.task_id, "group_id": row.id, "now": moment}
        grouping.decide(connection, run_id, "partial_after_s", "closed", **names, **details)
        mine = _group.id == row.id
        connection.execute(rollout_group.update().where(mine).values(expected=row.members))
        if config.settles_groups:
            grouping.settle(connection, run_id, row.id, config, moment)
            continue
        state, reason = judge_group(
            row.members,
            row.members,
            row.reward_min,
            row.reward_max,
            drop_no_signal=config.drop_no_signal,
            taught=row.taught,
        )
        values = {"state": state.value, "reason": reason.value if reason else ""}
        connection.execute(rollout_group.update().where(mine).values(values))
        if reason is not None:
            recorded = (_meta.group_id == row.id) & (_meta.state == RolloutState.RECORDED.value)
            rejected = {"state": RolloutState.REJECTED.value, "reason": reason.value}
            connection.execute(rollout_meta.update().where(recorded).values(rejected))
    return len(rows)
