"""The data manager as a process: it expires data, takes leases back, keeps statistics and applies the retention."""

import contextlib

from dart_train.core.metrics_log import MetricsLog
from dart_train.data.maintenance import data_service
from dart_train.processes.process_context import ProcessContext


def main(context: ProcessContext) -> None:
    """Look after the data until the process is told to stop."""
    settings = context.config.data
    with context.open_data() as manager, contextlib.closing(MetricsLog(context.run.metrics("data"))) as metrics:
        service = data_service.DataService(
            manager,
            metrics,
            workers=context.config.rollout.workers,
            retention=settings.retention,
            unavailable_timeout_s=settings.unavailable_timeout_s,
        )
        data_service.run_data_service(service)
