"""Insight: how a run's data stands, and why a trainer gets nothing.

Invariants:
    - Nothing here changes anything, so any number of readers may watch a run.
    - Every answer comes from one snapshot of the database.
"""

from typing import Any

import sqlalchemy as sa

from dart_train.data.curation.rules import Census
from dart_train.data.groups import checkpoint_rows, lease_rows
from dart_train.data.insight import statistics, status
from dart_train.data.insight.diagnosis import explain
from dart_train.data.insight.status import Status
from dart_train.data.manager.run_data import RunData


class Insight(RunData):
    """One run's data, to look at. Success, throughput and the like are functions of `insight.statistics`."""

    def ready(self) -> tuple[int, int]:
        """Return how many groups could be leased now, and how many trajectories they hold."""
        return self.store.read(lambda c: lease_rows.count_ready(c, self.run_id, self.oldest_allowed(c)))

    def counts(self) -> dict[str, int]:
        """Return the number of trajectories by state."""
        return self.read(statistics.count_states)

    def census(self) -> Census:
        """Return where every trajectory stands."""
        return self.store.read(lambda c: statistics.census(c, self.run_id, self.oldest_allowed(c)))

    def diagnose(self, asked: int | None = None) -> str:
        """Say why not more can be leased, in words, with the values that were seen; `asked` as `gather_evidence`."""

        def work(connection: sa.Connection) -> str:
            oldest = self.oldest_allowed(connection)
            evidence = status.gather_evidence(connection, self.run_id, oldest, asked)
            return explain(statistics.census(connection, self.run_id, oldest), evidence, self.config.sentences())

        return self.store.read(work)

    def figures(self) -> tuple[Census, dict[str, Any]]:
        """Return where every trajectory stands, and what else a line of metrics has, of one snapshot."""

        def work(connection: sa.Connection) -> tuple[Census, dict[str, Any]]:
            newest = checkpoint_rows.newest_version(connection, self.run_id)
            oldest = self.oldest_allowed(connection)
            census = statistics.census(connection, self.run_id, oldest)
            return census, status.figures_of(connection, self.run_id, census, newest, oldest)

        return self.store.read(work)

    def status(self) -> Status:
        """Return how everything stands, as one snapshot."""
        return self.read(status.status_of, self.config)
