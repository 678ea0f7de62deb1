"""The rollout service as a process.

The first SIGTERM (or Ctrl-C) lets running episodes end for a while and has what was played recorded; the second one
ends the process at once.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from rich.console import Console

from dart_gym.utils.processes import SUPERVISED
from dart_train.core.availability import insist
from dart_train.core.garbage_collection import collect_rarely
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.nodes.run_on_nodes import engines_on_nodes
from dart_train.processes.learn import ROLLOUTS_ENDED
from dart_train.processes.process_context import ProcessContext, published
from dart_train.processes.run_judges import make_judges
from dart_train.processes.run_policy import make_oracle, make_policy
from dart_train.processes.run_teacher import make_teacher
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service import service_http
from dart_train.rollout.service.rollout_service import RolloutService, RolloutSummary
from dart_train.rollout.settings.reward_config import judge_warnings
from dart_train.rollout.settings.rollout_config import EnginePlaces, RolloutConfig
from dart_train.run.run_directory import MAX_SOCKET_PATH, RunDirectory
from dart_train.terminal.panel import RolloutPanel

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)
SOCKET = "rollout.sock"
SHOW_INTERVAL_S = 0.5
SHOW_CURSOR = b"\x1b[?25h"


def main(context: ProcessContext, *, plain: bool = False, places: EnginePlaces = EnginePlaces()) -> None:
    """Play rollouts until the budget is spent, and record that in the database.

    Raises:
        SystemExit: if the process is told to stop.
    """
    collect_rarely()
    config = context.config.rollout
    listen = listen_address(config.metrics_listen, context.run)
    service_http.parse_listen(listen)
    for warning in judge_warnings(context.config.rewards):
        _log.warning("%s", warning)
    with insist(context.open_data, config.unavailable_timeout_s) as data:
        newest = insist(lambda: published(data), config.unavailable_timeout_s)
        insist(lambda: data.set_fact(ROLLOUTS_ENDED, False), config.unavailable_timeout_s)
        service = RolloutService(
            config,
            data,
            url=context.url,
            token=context.config.cluster.token(),
            weights=Weights(newest.path, newest.version, newest.url),
            make_policy=make_policy(
                newest.path,
                context.config.agent,
                config.sampling,
                entropy=context.config.trainer.recorded_entropies,
                routing=context.config.trainer.replay_routing,
            ),
            metrics=MetricsLog(context.run.metrics("rollout")),
            log_dir=context.run.logs,
            places=places,
            on_wait=context.progress().waits,
            nodes=engines_on_nodes(context.config, context.run),
            teacher=context.config.teacher,
            make_teacher=make_teacher(newest.path, context.config, context.run.logs),
            judges=make_judges(context.config),
            shown_pages=(shown := context.config.demonstrations.shown_pages),
            make_oracle=make_oracle(newest.path, context.config) if shown else None,
        )
        console = Console()
        live = console.is_terminal and not plain and SUPERVISED not in os.environ
        with RolloutPanel(context.config.name, console) if live else contextlib.nullcontext() as panel:
            summary, told = asyncio.run(_serve(service, listen, panel, seconds_left(config, context.run)))
        _log.info("ended: %s", summary)
        if told:
            raise SystemExit(128 + told)
        insist(lambda: data.set_fact(ROLLOUTS_ENDED, True), config.unavailable_timeout_s)


def listen_address(configured: str | None, run: RunDirectory) -> str:
    """Where the service answers to HTTP: as configured, else a socket in the run's directory where its path fits."""
    if configured is not None:
        return configured
    path = (run.root / SOCKET).resolve()
    return f"{service_http.UNIX}{path}" if len(bytes(path)) <= MAX_SOCKET_PATH else ""


def seconds_left(config: RolloutConfig, run: RunDirectory) -> float | None:
    """Return what is left of the minutes; every line of metrics stands for an interval of an earlier life."""
    if config.budget_minutes is None:
        return None
    return 60 * config.budget_minutes - config.metrics_interval_s * sum(1 for _ in read_metrics(run.metrics("rollout")))


async def _serve(
    service: RolloutService, listen: str, panel: RolloutPanel | None = None, seconds: float | None = None
) -> tuple[RolloutSummary, int]:
    """Run until done, out of time or told to stop; return the counts and the signal that told it to stop, or 0."""
    told = 0
    loop = asyncio.get_running_loop()

    def at_once(signum: int, frame: FrameType | None) -> None:
        os.write(2, f"told twice to stop: {service.unrecorded} finished episodes are not recorded\n".encode())
        if panel is not None:
            os.write(1, SHOW_CURSOR)
        os._exit(128 + signum)  # the engines end with this process, and the next one removes their sockets

    def stop(by: int) -> None:
        nonlocal told
        told = by
        for signum in SIGNALS:
            loop.remove_signal_handler(signum)
            signal.signal(signum, at_once)
        service.stop()

    def figures() -> dict[str, Any] | None:
        return service.figures() if service.playing else None

    for signum in SIGNALS:
        loop.add_signal_handler(signum, stop, signum)
    if seconds is not None:
        loop.call_later(max(0.0, seconds), service.stop)
    async with service_http.serving(listen, figures) as where:
        _log.info("metrics and health: %s", where or "nowhere")
        showing = asyncio.create_task(_show(panel, figures)) if panel is not None else None
        try:
            return await service.run(), told
        finally:
            if showing is not None:
                showing.cancel()


async def _show(panel: RolloutPanel, figures: Callable[[], dict[str, Any] | None]) -> None:
    while True:
        if (now := figures()) is not None:
            panel.refresh(now)
        await asyncio.sleep(SHOW_INTERVAL_S)
