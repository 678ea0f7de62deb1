"""Everything that the rollout service needs and may lose for a while."""

from __future__ import annotations

from dataclasses import dataclass, field

from dart_train.core.outage import Outage, OutageState


@dataclass(slots=True)
class Outages:
    """One for each, by short name; all with the same patience."""

    patience_s: float
    cluster: Outage = field(init=False)
    database: Outage = field(init=False)
    disk: Outage = field(init=False)
    engines: Outage = field(init=False)
    tasks: Outage = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = Outage("the environment cluster", self.patience_s)
        self.database = Outage("the database", self.patience_s)
        self.disk = Outage("the disk", self.patience_s, words=("is full", "has space again"))
        self.engines = Outage("every engine", self.patience_s)
        self.tasks = Outage("every task", self.patience_s, words=("is in quarantine", "is not any more"))

    def named(self) -> dict[str, Outage]:
        """All by short name."""
        return {
            "cluster": self.cluster,
            "database": self.database,
            "disk": self.disk,
            "engines": self.engines,
            "tasks": self.tasks,
        }

    def present(self) -> dict[str, OutageState]:
        """Those that are away now, by short name."""
        return {name: state for name, outage in self.named().items() if (state := outage.state()) is not None}
