"""The tables: the published ones, column for column, and the project's own.

Invariants:
    - `rollout_run` and `checkpoint` have exactly the published columns, nullability and unique keys.
    - Own facts live in own tables, joined by id: `rollout_meta`, `rollout_group`, `checkpoint_meta`, ...
    - Everything compiles for SQLite and MySQL; `scripts/schema_sql.py` writes `sql/*.sql`.
    - A change here comes with a migration (`dart_train/data/migrations`), and new columns stand at a table's end.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from dart_train.core.data_states import RULE_LENGTH, CheckpointStatus

REVISION = "0.2.0"  # of the newest migration: the version of the package that brought it
NAME_LENGTH = 191  # what InnoDB can index in utf8mb4; the published schema's length of ids
INSTRUCTION_LENGTH = 1024
PATH_LENGTH = 255


class _TouchedNow(FunctionElement[Any]):
    """Default of `updated_at`: MySQL keeps it up to date by itself, elsewhere the column's `onupdate` does."""

    inherit_cache = True


@compiles(_TouchedNow)
def _touched_now(element: _TouchedNow, compiler: Any, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(_TouchedNow, "mysql")
def _touched_now_mysql(element: _TouchedNow, compiler: Any, **_: Any) -> str:
    return "CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"


_UNICODE: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_unicode_ci"}
# Own ids compare byte by byte: "click-Tab" and "click-tab" are two tasks.
_OWN: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only INTEGER increments by itself in SQLite
_NAME = sa.String(NAME_LENGTH)

metadata = sa.MetaData()
# Alembic's own table, made with the others and kept apart from them: migrations never touch it.
version_metadata = sa.MetaData()
alembic_version = sa.Table(
    "alembic_version", version_metadata, sa.Column("version_num", sa.String(32), primary_key=True), **_OWN
)

rollout_run = sa.Table(
    "rollout_run",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", _NAME),
    sa.Column("trajectory_id", _NAME, nullable=False),
    sa.Column("task_id", _NAME, nullable=False),
    sa.Column("trace_id", _NAME, nullable=False),
    sa.Column("split_dir", sa.String(512)),
    sa.Column("reward", sa.Double()),
    sa.Column("num_chunks", sa.Integer()),
    sa.Column("used", sa.Integer(), nullable=False, server_default="0"),
    sa.Column("model_version", sa.String(512)),
    sa.Column("instruction", sa.String(INSTRUCTION_LENGTH)),
    sa.Column("create_at", sa.TIMESTAMP(), nullable=False, server_default=sa.func.current_timestamp()),
    sa.UniqueConstraint("id", name="uq_rollout_run_id"),
    sa.UniqueConstraint("trajectory_id", "run_id", name="uk_rollout_run_traj_run"),
    sa.Index("idx_rollout_run_task", "task_id"),
    **_UNICODE,
)

checkpoint = sa.Table(
    "checkpoint",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True, comment="Primary Key ID"),
    sa.Column("name", sa.String(50), nullable=False, server_default="", comment="Checkpoint Name"),
    sa.Column("version", sa.String(50), nullable=False, comment="v0, v1, ..."),
    sa.Column("run_id", _NAME, nullable=False, server_default=""),
    sa.Column(
        "status",
        sa.String(20),
        nullable=False,
        server_default=CheckpointStatus.PENDING.value,
        comment="Status: PENDING|RUNNING|COMPLETED|FAILED|DEPRECATED",
    ),
    sa.Column("path", sa.String(PATH_LENGTH), nullable=False, comment="Storage Path"),
    sa.Column("source", sa.String(50), comment="Source"),
    sa.Column("operator", sa.String(50), comment="Operator"),
    sa.Column("remark", sa.String(1024), comment="Remark"),
    sa.Column("config_yaml", sa.Text(), comment="Full Deployment Config"),
    sa.Column("created_at", sa.TIMESTAMP(), nullable=False, server_default=sa.func.current_timestamp()),
    sa.Column(
        "updated_at", sa.TIMESTAMP(), nullable=False, server_default=_TouchedNow(), onupdate=sa.func.current_timestamp()
    ),
    sa.Column("deleted_at", sa.TIMESTAMP(), nullable=True, comment="Soft Delete Time"),
    sa.Column("started_at", sa.TIMESTAMP(), nullable=True, comment="Started At"),
    sa.Column("finished_at", sa.TIMESTAMP(), nullable=True, comment="Finished At"),
    sa.Index("idx_status", "status"),
    sa.Index("idx_created_at", "created_at"),
    sa.Index("idx_updated_at", "updated_at"),
    **_UNICODE,
)

rollout_group = sa.Table(
    "rollout_group",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", _NAME, nullable=False),
    sa.Column("group_key", _NAME, nullable=False),
    sa.Column("task_id", _NAME, nullable=False),
    sa.Column("expected", sa.Integer(), nullable=False, comment="trainable members that complete it"),
    sa.Column("members", sa.Integer(), nullable=False, comment="trainable members recorded so far"),
    sa.Column("reward_min", sa.Double(), nullable=False),
    sa.Column("reward_max", sa.Double(), nullable=False),
    sa.Column("oldest_version", sa.Integer(), nullable=False, comment="least staleness_version of its members"),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(RULE_LENGTH), nullable=False, server_default=""),
    sa.Column("lease_id", sa.String(32)),
    sa.Column("created_at", sa.Double(), nullable=False, comment="Unix time"),
    sa.Column("taught", sa.Integer(), nullable=False, server_default="0", comment="members that a teacher taught"),
    sa.UniqueConstraint("run_id", "group_key", name="uk_rollout_group"),
    sa.Index("idx_rollout_group_state", "run_id", "state", "id"),
    sa.Index("idx_rollout_group_age", "run_id", "state", "oldest_version", "members"),
    sa.Index("idx_rollout_group_task", "run_id", "task_id", "state"),
    sa.Index("idx_rollout_group_lease", "lease_id"),
    **_OWN,
)

rollout_meta = sa.Table(
    "rollout_meta",
    metadata,
    sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False, comment="rollout_run.id"),
    sa.Column("run_id", _NAME, nullable=False),
    sa.Column("trajectory_id", _NAME, nullable=False),
    sa.Column("task_id", _NAME, nullable=False),
    sa.Column("group_id", _ID, comment="rollout_group.id; NULL for what is in no group"),
    sa.Column("group_key", _NAME, nullable=False),
    sa.Column("expected", sa.Integer(), nullable=False),
    sa.Column("task_hash", _NAME, nullable=False),
    sa.Column("seed", sa.BigInteger(), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(RULE_LENGTH), nullable=False, server_default=""),
    sa.Column("source", sa.String(16), nullable=False),
    sa.Column("terminal", sa.String(16), nullable=False),
    sa.Column("reward", sa.Double()),
    sa.Column("num_steps", sa.Integer(), nullable=False),
    sa.Column("num_actions", sa.Integer(), nullable=False),
    sa.Column("oldest_version", sa.Integer(), nullable=False),
    sa.Column("newest_version", sa.Integer(), nullable=False),
    sa.Column("staleness_version", sa.Integer(), nullable=False, comment="of the step that its staleness counts from"),
    sa.Column("trained_version", sa.Integer(), comment="weights that were trained with it"),
    sa.Column("lease_id", sa.String(32)),
    sa.Column(
        "env_seconds",
        sa.Double(),
        nullable=False,
        comment="desktop time from request to reply: reset + step + evaluate + wire",
    ),
    sa.Column("timings", sa.JSON(), nullable=False),
    sa.Column("created_at", sa.Double(), nullable=False, comment="Unix time of the episode's end"),
    sa.Column("digest", sa.String(32), nullable=False, server_default="", comment="of its stored form"),
    sa.Column("recorded_at", sa.Double(), comment="Unix time by the database's clock"),
    sa.Column("clock_skew_s", sa.Double(), comment="how far its machine's clock was ahead; NULL: not noticeably"),
    sa.Column("taught", sa.Integer(), nullable=False, server_default="0", comment="steps that a teacher taught"),
    sa.Column("training_reward", sa.Double(), comment="where judges take part; NULL: the reward"),
    sa.Index("uk_rollout_meta_trajectory", "run_id", "trajectory_id", unique=True),
    sa.Index("idx_rollout_meta_group", "group_id"),
    sa.Index("idx_rollout_meta_state", "run_id", "state", "reason"),
    sa.Index("idx_rollout_meta_task", "run_id", "task_id", "rollout_id"),
    sa.Index("idx_rollout_meta_time", "run_id", "created_at"),
    **_OWN,
)

lease = sa.Table(
    "lease",
    metadata,
    sa.Column("lease_id", sa.String(32), primary_key=True),
    sa.Column("run_id", _NAME, nullable=False),
    sa.Column("holder", _NAME, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("num_groups", sa.Integer(), nullable=False),
    sa.Column("ttl_s", sa.Double(), nullable=False),
    sa.Column("created_at", sa.Double(), nullable=False),
    sa.Column("expires_at", sa.Double(), nullable=False),
    sa.Column("version", sa.Integer(), comment="weights that were trained on it, by its commit"),
    sa.Column("serial", sa.Integer(), nullable=False, server_default="0", comment="counts its holder's leases"),
    sa.Column("result_version", sa.Integer(), comment="first published version that holds what was learned from it"),
    sa.Column("surplus", sa.Integer(), nullable=False, server_default="0", comment="groups trained although lost"),
    sa.Index("idx_lease_holder", "run_id", "holder", "serial"),
    sa.Index("idx_lease_state", "run_id", "state"),
    **_OWN,
)

checkpoint_meta = sa.Table(
    "checkpoint_meta",
    metadata,
    sa.Column("run_id", _NAME, primary_key=True),
    sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
    sa.Column("checkpoint_id", _ID, nullable=False, comment="checkpoint.id"),
    sa.Column("created_at", sa.Double(), nullable=False, comment="Unix time"),
    sa.Column("completed_at", sa.Double(), comment="Unix time"),
    sa.Column("retired_at", sa.Double(), comment="Unix time at which its files were given up"),
    **_OWN,
)

task_state = sa.Table(
    "task_state",
    metadata,
    sa.Column("run_id", _NAME, primary_key=True),
    sa.Column("task_id", _NAME, primary_key=True),
    sa.Column("rollouts", sa.Integer(), nullable=False, comment="scored rollouts ever"),
    sa.Column("window_size", sa.Integer(), nullable=False, comment="rollouts behind success_rate and mean_steps"),
    sa.Column("success_rate", sa.Double(), comment="mean reward over the window"),
    sa.Column("mean_steps", sa.Double()),
    sa.Column("longest_success", sa.Integer(), comment="steps of the longest successful rollout ever"),
    sa.Column("last_rollout_id", _ID, nullable=False, comment="newest row that is counted in"),
    sa.Column("updated_at", sa.Double(), nullable=False),
    **_OWN,
)

run_state = sa.Table(
    "run_state",
    metadata,
    sa.Column("run_id", _NAME, primary_key=True),
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("value", sa.JSON(), nullable=False),
    **_OWN,
)

rollout_step = sa.Table(
    "rollout_step",
    metadata,
    sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False, comment="rollout_run.id"),
    sa.Column("step", sa.Integer(), primary_key=True, autoincrement=False, comment="0 for the first"),
    sa.Column("oldest_version", sa.Integer(), nullable=False),
    sa.Column("newest_version", sa.Integer(), nullable=False),
    sa.Column("num_tokens", sa.Integer(), nullable=False, comment="sampled"),
    sa.Column("num_actions", sa.Integer(), nullable=False),
    sa.Column("failed", sa.Boolean(), nullable=False, comment="its action could not be carried out"),
    sa.Column("seconds", sa.Double(), nullable=False, comment="all its phases together"),
    sa.Column("engine", sa.String(64), nullable=False, comment="replica that served it"),
    **_OWN,
)

lease_item = sa.Table(
    "lease_item",
    metadata,
    sa.Column("lease_id", sa.String(32), primary_key=True),
    sa.Column("group_id", _ID, primary_key=True, autoincrement=False, comment="rollout_group.id"),
    **_OWN,
)

serving = sa.Table(
    "serving",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", _NAME, nullable=False),
    sa.Column("replica", _NAME, nullable=False),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("started_at", sa.Double(), nullable=False),
    sa.Column("ended_at", sa.Double(), comment="NULL while it serves"),
    sa.Index("idx_serving_run", "run_id", "ended_at"),
    **_OWN,
)

experience_pool = sa.Table(
    "experience_pool",
    metadata,
    sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False, comment="rollout_run.id"),
    sa.Column("run_id", _NAME, nullable=False),
    sa.Column("trajectory_id", _NAME, nullable=False),
    sa.Column("task_id", _NAME, nullable=False),
    sa.Column("provenance", sa.String(16), nullable=False),
    sa.Column("origin", sa.String(512), nullable=False, server_default="", comment="file, person or run it came from"),
    sa.Column("has_logprobs", sa.Boolean(), nullable=False, comment="false: importance weight 1, and flagged"),
    sa.Column("reward", sa.Double(), nullable=False),
    sa.Column("uses", sa.Integer(), nullable=False, server_default="0", comment="groups it was injected into"),
    sa.Column("added_at", sa.Double(), nullable=False),
    sa.Column("last_used_at", sa.Double()),
    sa.Column("retired_at", sa.Double(), comment="NULL while it may be used"),
    sa.Index("idx_experience_pool_task", "run_id", "task_id", "retired_at"),
    **_OWN,
)

group_injection = sa.Table(
    "group_injection",
    metadata,
    sa.Column("group_id", _ID, primary_key=True, autoincrement=False, comment="rollout_group.id"),
    sa.Column("rollout_id", _ID, primary_key=True, autoincrement=False, comment="of the pool, joins the group"),
    sa.Column("replaced_id", _ID, comment="rollout_meta.rollout_id of the member that left"),
    sa.Column("injected_at", sa.Double(), nullable=False),
    **_OWN,
)

curation_decision = sa.Table(
    "curation_decision",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", _NAME, nullable=False),
    sa.Column("rule", sa.String(RULE_LENGTH), nullable=False, comment="experience_pool, no_signal, or another name"),
    sa.Column("verdict", sa.String(32), nullable=False),
    sa.Column("task_id", _NAME, nullable=False, server_default=""),
    sa.Column("group_id", _ID),
    sa.Column("details", sa.JSON(), nullable=False),
    sa.Column("decided_at", sa.Double(), nullable=False),
    sa.Index("idx_curation_decision_rule", "run_id", "rule", "id"),
    **_OWN,
)
