"""Errors of a run's processes that a person must act on. Each message names the cause and the next step."""

from pathlib import Path
from typing import ClassVar


class DartTrainError(Exception):
    """Base of all errors of this package; `hopeless`: the same command fails until a person has mended something."""

    hopeless: ClassVar[bool] = False


class Interrupted(DartTrainError):
    """Ctrl-C or SIGTERM ended a run; the same command resumes it."""


class DataError(DartTrainError):
    """Base of the data manager's errors."""


class DatabaseGoneError(DataError):
    """The database cannot be reached, or its file was deleted while in use."""


class DatabaseRefusedError(DataError):
    """The database answers and does not let this user in: a wrong name, password or right. Not tried again."""

    hopeless = True


class DatabaseBusyError(DataError):
    """Other processes held the database's lock for longer than the busy timeout."""


class DiskFullError(DataError):
    """No space is left on a device."""

    hopeless = True

    def __init__(self, path: str | Path) -> None:
        super().__init__(
            f"no space left on the device while writing {path}: free some space (old runs and checkpoints are the "
            "largest) or set the run directory to another disk; what was recorded before is intact"
        )
        self.path = Path(path)


class ReadOnlyError(DataError):
    """The database or the data directory cannot be written."""

    hopeless = True


class StorageGoneError(DataError):
    """The object store that holds trajectories and screenshots cannot be reached."""


class SchemaError(DataError):
    """The database was made by another version of the schema, or is not the data manager's at all."""

    hopeless = True


class CorruptDataError(DataError):
    """A stored file does not hold what its name or row says."""

    hopeless = True

    def __init__(self, path: str | Path, cause: object) -> None:
        super().__init__(
            f"{path} is damaged or missing ({cause}): restore it from a copy, or go on without it; "
            "a lease leaves groups with damaged members out and marks them rejected"
        )
        self.path = path if "://" in str(path) else Path(path)


class InvalidTrajectoryError(DataError):
    """A trajectory that breaks an invariant of `dart_agent.episodes.trajectory` was offered for recording."""


class DuplicateTrajectoryError(InvalidTrajectoryError):
    """Two different trajectories of one run have the same id."""


class LeaseError(DataError):
    """The lease cannot be used any more: it expired, was given back, or never existed."""


class TasksFailedError(DartTrainError):
    """No task of the training set could be played for too long; each loses its desktop."""


class TrainedNothing(DartTrainError):
    """A run has ended, and no optimizer step changed the weights."""

    hopeless = True


class CheckpointError(DataError):
    """A checkpoint cannot be published as asked, or is not whole."""

    hopeless = True


class TrainingError(DartTrainError):
    """Training cannot continue: the weights or gradients are not finite, or there is nothing to train on."""

    hopeless = True


class RankLostError(DartTrainError):
    """A rank that trains with this one has ended, or does not answer within the process group's time limit."""


class OutOfMemory(DartTrainError):
    """A rank's memory ran out in the middle of a pass; a new start keeps to the smaller limits that it wrote down."""
