"""The data manager: the one way to a run's trajectories, groups, checkpoints and statistics.

Life of a trajectory: recorded -> leased -> trained, or expired (too old), rejected (by a rule of curation), pooled
(demonstrations). Life of a group: open -> ready -> leased -> trained, or expired, rejected.

Code that needs a part takes the narrow class: `Recording` (rollouts), `Leasing` (trainers), `Insight` (readers).

Invariants:
    - A row exists only for a trajectory whose files are complete.
    - Every change of state is one transaction; any number of processes may work on the same run.
    - Nothing is marked trained before the trainer says so, and a dead trainer's groups come back.
"""

import sqlalchemy as sa

from dart_train.data.curation import regrouping
from dart_train.data.groups import lease_rows, partial_groups
from dart_train.data.groups.lease_rows import Sweep
from dart_train.data.insight import statistics
from dart_train.data.manager.leasing import Leasing
from dart_train.data.manager.recording import Recording
from dart_train.data.store.sql_store import now


class DataManager(Recording, Leasing):
    """One run's data, to look at and to change; and what the data manager's own process does for it."""

    def sweep(self) -> Sweep:
        """Give back dead holders' leases, expire groups out of the window. Raises `DatabaseGoneError`."""
        self.store.check_alive()
        total = Sweep()
        while True:  # in small transactions, so that no other process waits long
            part = self.store.write(lambda c: lease_rows.sweep(c, self.run_id, self.oldest_allowed(c)))
            total += part
            if part.expired_groups < lease_rows.SWEEP_GROUPS:
                return total

    def close_partial(self) -> int:
        """Settle groups that wait too long for members with those that they have; return how many."""
        config = self.config
        if config.partial_after_s is None:
            return 0
        return self.store.write(
            lambda c: partial_groups.close_late(c, self.run_id, config, oldest=self.oldest_allowed(c), moment=now(c))
        )

    def refresh_task_stats(self) -> int:
        """Bring the saved records of tasks up to date; return how many tasks had news."""
        return self.write(statistics.refresh_task_stats, self.config.success_window)

    def regroup(self) -> int:
        """Make groups of trajectories that no group can use as it is; return how many. See `curation.regrouping`."""
        config = self.config
        plans = self.plans(dict.fromkeys(self.read(statistics.saved_task_stats)))
        full = config.select_rollouts or config.group_size

        def size_of(task_id: str) -> int:
            return min(full, plans[task_id].group_size) if task_id in plans else full

        def work(connection: sa.Connection) -> int:
            oldest, moment = self.oldest_allowed(connection), now(connection)
            since = moment - config.leftover_after_s
            return regrouping.regroup_rows(
                connection, self.run_id, size_of, oldest=oldest, waited_since=since, now=moment
            )

        return self.store.write(work)
