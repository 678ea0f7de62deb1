"""The data manager: every trajectory and checkpoint of a run, in SQL and files."""

from dart_train.data.checkpoints import CheckpointRow
from dart_train.data.curation import Census, CurationConfig
from dart_train.data.files import image_hash
from dart_train.data.leased import Group, LeasedGroups
from dart_train.data.manager import DataManager
from dart_train.data.resuming import Resumed
from dart_train.data.schema import CheckpointStatus, RolloutState
from dart_train.data.statistics import TaskStats

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
