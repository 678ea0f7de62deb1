"""The services that the rollout service depends on and that may be away for a while."""

from dataclasses import dataclass, field

from dart_train.core.availability import Absence, Availability


@dataclass(slots=True)
class Dependencies:
    """The availability of each dependency, all with the same time limit in seconds."""

    unavailable_timeout_s: float
    cluster: Availability = field(init=False)
    database: Availability = field(init=False)
    disk: Availability = field(init=False)
    engines: Availability = field(init=False)
    tasks: Availability = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = Availability("the environment cluster", self.unavailable_timeout_s)
        self.database = Availability("the database", self.unavailable_timeout_s)
        self.disk = Availability("the disk", self.unavailable_timeout_s, words=("is full", "has space again"))
        self.engines = Availability("every engine", self.unavailable_timeout_s)
        self.tasks = Availability("every task", self.unavailable_timeout_s, words=("is left out", "is played again"))

    def named(self) -> dict[str, Availability]:
        """Return all dependencies by short name."""
        return {
            "cluster": self.cluster,
            "database": self.database,
            "disk": self.disk,
            "engines": self.engines,
            "tasks": self.tasks,
        }

    def present(self) -> dict[str, Absence]:
        """Return the dependencies that are away now, by short name."""
        return {
            name: state for name, availability in self.named().items() if (state := availability.state()) is not None
        }
