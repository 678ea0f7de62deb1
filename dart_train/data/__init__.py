"""The data manager: every trajectory and checkpoint of a run, in SQL and files.

Importing this package is cheap: reading a configuration needs its rules, and no database.
"""

from typing import TYPE_CHECKING

from dart_gym.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from dart_agent.episodes.screenshots import image_hash as image_hash
    from dart_agent.episodes.trajectory import Step as Step
    from dart_agent.episodes.trajectory import Trajectory as Trajectory
    from dart_train.core.data_states import CheckpointStatus as CheckpointStatus
    from dart_train.core.data_states import RolloutState as RolloutState
    from dart_train.data.curation.drop_rules import CurationRule as CurationRule
    from dart_train.data.curation.drop_rules import Member as Member
    from dart_train.data.curation.rules import Census as Census
    from dart_train.data.curation.rules import CurationConfig as CurationConfig
    from dart_train.data.groups.checkpoint_rows import CheckpointRow as CheckpointRow
    from dart_train.data.groups.resuming import Resumed as Resumed
    from dart_train.data.insight.statistics import TaskStats as TaskStats
    from dart_train.data.manager.data_manager import DataManager as DataManager
    from dart_train.data.manager.leasing import Group as Group
    from dart_train.data.manager.leasing import LeasedGroups as LeasedGroups
    from dart_train.data.manager.leasing import Leasing as Leasing
    from dart_train.data.manager.recording import Recording as Recording
    from dart_train.data.manager.run_insight import Insight as Insight

__getattr__ = lazy_names(
    __name__,
    {
        "Census": "dart_train.data.curation.rules",
        "CheckpointRow": "dart_train.data.groups.checkpoint_rows",
        "CheckpointStatus": "dart_train.core.data_states",
        "CurationConfig": "dart_train.data.curation.rules",
        "CurationRule": "dart_train.data.curation.drop_rules",
        "DataManager": "dart_train.data.manager.data_manager",
        "Group": "dart_train.data.manager.leasing",
        "Insight": "dart_train.data.manager.run_insight",
        "LeasedGroups": "dart_train.data.manager.leasing",
        "Leasing": "dart_train.data.manager.leasing",
        "Member": "dart_train.data.curation.drop_rules",
        "Recording": "dart_train.data.manager.recording",
        "Resumed": "dart_train.data.groups.resuming",
        "RolloutState": "dart_train.core.data_states",
        "Step": "dart_agent.episodes.trajectory",
        "TaskStats": "dart_train.data.insight.statistics",
        "Trajectory": "dart_agent.episodes.trajectory",
        "image_hash": "dart_agent.episodes.screenshots",
    },
)
