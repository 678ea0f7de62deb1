"""Care of a run's data: integrity check, retention, transfer, import into the pool, and the process that does it."""
