"""The data manager: every trajectory and checkpoint of a run, in SQL and files."""

from dart_agent.episodes.screenshots import image_hash
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_train.data.curation.drop_rules import CurationRule, Member
from dart_train.data.curation.rules import Census, CurationConfig
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.groups.resuming import Resumed
from dart_train.data.insight.statistics import TaskStats
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.manager.leasing import Group, LeasedGroups, Leasing
from dart_train.data.manager.recording import Recording
from dart_train.data.manager.run_insight import Insight
from dart_train.data.store.schema import CheckpointStatus, RolloutState

__all__ = [
    "Census",
    "CheckpointRow",
    "CheckpointStatus",
    "CurationConfig",
    "CurationRule",
    "DataManager",
    "Group",
    "Insight",
    "LeasedGroups",
    "Leasing",
    "Member",
    "Recording",
    "Resumed",
    "RolloutState",
    "Step",
    "TaskStats",
    "Trajectory",
    "image_hash",
]
