"""Small held-out evaluations during training: its progress, the best version, and the end when nothing improves.

Invariants:
    - Its seeds are neither trained on nor those of the tests before and after: choosing by it favours none of these.
    - `best/` is a whole copy of the best version so far, or is not there.
    - What is evaluated is held: an evaluation may take longer than the trainer keeps a version.
    - An evaluation that fails is written down as lost, and the next one comes in its turn: it ends no run.
    - A killed monitor resumes from `metrics/held_out.jsonl`; an evaluation that was cut off is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dart_agent.engines.base.engine import EngineError
from dart_agent.episodes.play_list import play_list
from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.errors import ConfigurationError, DartGymError
from dart_gym.core.task_group import TaskGroup
from dart_gym.utils.durable_files import publish_directory
from dart_gym.utils.owned_directories import owned_directory
from dart_gym.utils.processes import STOPPED_STATUS
from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.data.groups.checkpoint_rows import CheckpointRow
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.processes.evaluate_version import policy_seeds, say_lost, task_steps
from dart_train.processes.learn import STOP_TRAINING
from dart_train.processes.process_context import ProcessContext, published
from dart_train.processes.run_policy import make_policy
from dart_train.rollout.fleet.engine_pool import EnginePool, EpisodeEngine
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.fleet.weight_sync import WeightSync
from dart_train.rollout.settings.rollout_config import EnginePlaces

_log = logging.getLogger(__name__)
FIRST_SEED = 9_000
POLL_S = 0.5
HELD = ".held"
"""The directory, inside the run's, of the version that is being evaluated."""


def main(context: ProcessContext, *, places: EnginePlaces = EnginePlaces()) -> None:
    """Evaluate whenever enough rollouts were recorded, until told to stop. `places`: where its engine computes.

    Raises:
        ConfigurationError: the run has no number of rollouts between two evaluations.
        SystemExit: told to stop.
    """
    if context.config.evaluation.monitor.every_rollouts is None:
        raise ConfigurationError(
            "evaluation.monitor.every_rollouts is not set: it says how many rollouts lie between two evaluations"
        )
    told: list[int] = []
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_until_told(context, places, told))
    raise SystemExit(128 + told[0] if told else STOPPED_STATUS)


async def _until_told(context: ProcessContext, places: EnginePlaces, told: list[int]) -> None:
    task = asyncio.current_task()
    assert task is not None  # for the type checker: a coroutine that runs is in one

    def stop(signum: int) -> None:
        told.append(signum)
        task.cancel()

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
    with context.open_data(context.config.data.unavailable_timeout_s) as data, owned_directory("engines") as sockets:
        engine = context.config.rollout.engine.model_copy(update={"replicas": 1})
        first = published(data)
        logs = context.run.logs / "monitor"
        async with EnginePool(
            engine,
            Weights(first.path, first.version),
            directory=sockets,
            log_dir=logs,
            sync=context.config.rollout.sync,
            places=places,
        ) as pool:
            await _evaluate_as_it_goes(context, data, pool)


async def _evaluate_as_it_goes(context: ProcessContext, data: DataManager, pool: EnginePool) -> None:
    settings, path = context.config.evaluation.monitor, context.run.metrics("held_out")
    rows = [row for row in read_metrics(path) if "success" in row]
    log = MetricsLog(path)
    asked = rows[-1]["rollouts"] if rows else None
    while True:
        rollouts = sum(record.rollouts for record in (await asyncio.to_thread(_task_stats, data)).values())
        if asked is not None and rollouts < asked + (settings.every_rollouts or 0):
            await asyncio.sleep(POLL_S)
            continue
        version, held = await asyncio.to_thread(hold, lambda: published(data), context.run.root / HELD)
        if not await _serve(pool, Weights(str(held), version)):
            await asyncio.sleep(POLL_S)
            continue
        asked = rollouts
        try:
            episodes = await _play(context, pool, held)
        except (DartGymError, EngineError) as error:
            _log.warning("the evaluation of version %d was lost: %s", version, error)
            log.write(version=version, rollouts=rollouts, lost_by=str(error))
            continue
        if said := say_lost(episodes):
            log.write(version=version, rollouts=rollouts, lost=sum(bool(one.lost_by) for one in episodes), why=said)
        if all(one.lost_by for one in episodes):
            continue
        row = _row(version, rollouts, await asyncio.to_thread(data.read, statistics.actions_played), episodes)
        if best_of([*rows, row]) is row:
            copy_version(held, context.run.best)
        rows.append(row)
        log.write(**row)
        if out_of_patience(rows, settings.patience):
            _log.warning("no better version in %s evaluations: training ends", settings.patience)
            await asyncio.to_thread(data.set_fact, STOP_TRAINING, True)


def _task_stats(data: DataManager) -> dict[str, statistics.TaskStats]:
    return data.read(statistics.saved_task_stats)


async def _serve(pool: EnginePool, weights: Weights) -> bool:
    """Bring a version into the engine; False if it cannot be loaded."""
    sync = WeightSync(lambda: weights, pool)
    while pool.replicas[0].version != weights.version or not pool.replicas[0].usable:
        if weights in sync.skipped:
            return False  # it says why in the log; the version before it would answer
        async with TaskGroup() as group:
            await sync.begin(group)
        await asyncio.sleep(0.05)
    return True


async def _play(context: ProcessContext, pool: EnginePool, model_dir: Path) -> Sequence[Trajectory]:
    config = context.config
    rollout, settings = config.rollout, config.evaluation.monitor
    sampling = rollout.sampling.model_copy(update={"temperature": config.evaluation.temperature})
    factory = make_policy(model_dir, config.agent, sampling)
    return await play_list(
        context.client(),
        lambda session: factory(EpisodeEngine(pool)),
        [(task, FIRST_SEED + index) for task in config.train_tasks for index in range(settings.episodes)],
        concurrency=settings.workers,
        max_steps=rollout.max_steps,
        task_steps=task_steps(config),
        policy_seeds=policy_seeds(config),
        pacing=rollout.pacing,
    )


def _row(version: int, rollouts: int, actions: int, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the line of one evaluation: the mean over tasks, and every task's mean, without lost episodes."""
    tasks: dict[str, list[float]] = {}
    for one in episodes:
        if not one.lost_by:
            tasks.setdefault(one.task_id, []).append(float(one.success))
    means = {task: sum(scores) / len(scores) for task, scores in tasks.items()}
    success = sum(means.values()) / len(means) if means else 0.0
    return {"version": version, "rollouts": rollouts, "actions": actions, "success": success, "tasks": means}


def best_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The best evaluation, the earliest of equals. Pure."""
    return max(rows, key=lambda row: row["success"])


def out_of_patience(rows: Sequence[dict[str, Any]], patience: int | None) -> bool:
    """Return whether the last `patience` evaluations brought nothing better than the best before them. Pure."""
    return patience is not None and len(rows) - 1 - rows.index(best_of(rows)) >= patience


def hold(newest: Callable[[], CheckpointRow], place: Path) -> tuple[int, Path]:
    """A copy in `place` of the newest version, which stays when that is removed; the copy before it is removed."""
    while True:
        row = newest()
        held = place / f"v{row.version:06d}"
        try:
            copy_version(Path(row.path), held)
        except (FileNotFoundError, shutil.Error):  # removed since it was found
            if newest().version == row.version:
                raise
            continue
        for other in set(place.iterdir()) - {held}:
            shutil.rmtree(other, ignore_errors=True)
        return row.version, held


def copy_version(version: Path, target: Path) -> None:
    """Let `target` be a copy of a published version, whose files it shares: versions are never changed."""
    target.parent.mkdir(exist_ok=True)
    made, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
    for leftover in (made, old):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(version, made, copy_function=os.link)
    if target.exists():
        target.rename(old)
    publish_directory(made, target)
    shutil.rmtree(old, ignore_errors=True)
