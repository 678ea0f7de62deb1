"""The data manager: every trajectory and checkpoint of a run, in SQL and files."""

from dart_train.data.curation.rules import Census, CurationConfig
from dart_train.data.files.trajectory_files import image_hash
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.groups.resuming import Resumed
from dart_train.data.insight.statistics import TaskStats
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.manager.leased_groups import Group, LeasedGroups
from dart_train.data.store.schema import CheckpointStatus, RolloutState

__all__ = [
    "Census",
    "CheckpointRow",
    "CheckpointStatus",
    "CurationConfig",
    "DataManager",
    "Group",
    "LeasedGroups",
    "Resumed",
    "RolloutState",
    "TaskStats",
    "image_hash",
]
