"""The data manager: every trajectory and checkpoint of a run, in SQL and files."""

from dart_agent.episodes.screenshots import image_hash
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
    "DataManager",
    "Group",
    "Insight",
    "LeasedGroups",
    "Leasing",
    "Recording",
    "Resumed",
    "RolloutState",
    "TaskStats",
    "image_hash",
]
