"""The rollout service as a process."""

from __future__ import annotations

import asyncio
import logging
import signal

from dart_gym.processes import STOPPED_STATUS
from dart_train.agent import make_policy
from dart_train.commands.context import ModuleContext, published
from dart_train.commands.learn import ROLLOUTS_ENDED
from dart_train.metrics import MetricsLog
from dart_train.rollout.replica import Weights
from dart_train.rollout.service import RolloutService, RolloutSummary

_log = logging.getLogger(__name__)


def main(context: ModuleContext) -> None:
    """Play rollouts until the budget is spent, and say so in the data base.

    Raises:
        SystemExit: told to stop before that.
    """
    config = context.config.rollout
    with context.open_data() as data:
        newest = published(data)
        data.set_fact(ROLLOUTS_ENDED, False)
        service = RolloutService(
            config,
            data,
            cluster_url=context.url,
            token=context.config.cluster.token(),
            weights=Weights(newest.path, newest.version),
            make_policy=make_policy(newest.path, context.config.agent, config.sampling),
            metrics=MetricsLog(context.run.metrics("rollout")),
            log_dir=context.run.logs,
        )
        summary, stopped = asyncio.run(_serve(service))
        _log.info("ended: %s", summary)
        if stopped:
            raise SystemExit(STOPPED_STATUS)
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
