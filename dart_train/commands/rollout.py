"""The rollout service as a process."""

from __future__ import annotations

import asyncio
import logging
import signal

from dart_gym.tasks.registry import task_ids
from dart_train.agent import make_policy
from dart_train.commands.context import ModuleContext
from dart_train.commands.learn import ROLLOUTS_ENDED
from dart_train.errors import DartTrainError
from dart_train.metrics import MetricsLog
from dart_train.rollout.config import RolloutConfig, TaskEntry
from dart_train.rollout.replica import Weights
from dart_train.rollout.service import RolloutService, RolloutSummary

_log = logging.getLogger(__name__)


def expand_tasks(config: RolloutConfig) -> RolloutConfig:
    """Replace entries such as "osworld/*" by the tasks of that suite."""
    entries: list[TaskEntry] = []
    for entry in config.tasks:
        ids = task_ids(entry.id.removesuffix("/*")) if entry.id.endswith("/*") else [entry.id]
        entries += [entry.model_copy(update={"id": task_id}) for task_id in ids]
    return config.model_copy(update={"tasks": tuple(entries)})


def main(context: ModuleContext) -> None:
    """Play rollouts until the budget is spent, and say so in the data base."""
    config = expand_tasks(context.config.rollout)
    with context.open_data() as data:
        newest = data.newest_checkpoint()
        if newest is None:
            raise DartTrainError("no weights are published yet; run `dart-train run`, or `dart-train prepare` first")
        data.set_fact(ROLLOUTS_ENDED, False)
        service = RolloutService(
            config,
            data,
            cluster_url=context.url,
            weights=Weights(newest.path, newest.version),
            make_policy=make_policy(newest.path, context.config.agent, config.sampling),
            metrics=MetricsLog(context.run.metrics("rollout")),
            log_dir=context.run.logs,
        )
        summary, stopped = asyncio.run(_serve(service))
        _log.info("ended: %s", summary)
        if not stopped:
            data.set_fact(ROLLOUTS_ENDED, True)


async def _serve(service: RolloutService) -> tuple[RolloutSummary, bool]:
    """Run until done or told to stop; returns the counts and whether it was told to."""
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        service.stop()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop)
    return await service.run(), stopped.is_set()
