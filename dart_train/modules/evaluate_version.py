"""Plays held-out seeds with fixed weights and writes every episode down: what "before" and "after" are made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from dart_gym.core.actions import action_to_dict
from dart_train.config.run_config import RunConfig
from dart_train.modules.module_context import ModuleContext, check_model, published
from dart_train.modules.run_policy import make_policy
from dart_train.rollout.fleet.engine_pool import EnginePool, EpisodeEngine
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.fleet.socket_directory import socket_directory
from dart_train.rollout.play.episode_batch import play_all
from dart_train.rollout.play.rollout_episode import PlayedEpisode
from dart_train.rollout.schedule.scheduler import Assignment
from dart_train.rollout.settings.rollout_config import FIRST_TRAINING_SEED
from dart_train.run.run_directory import RunDirectory, write_json


def main(
    context: ModuleContext,
    *,
    label: str,
    version: int | None = None,
    model: Path | None = None,
    trained_only: bool = False,
    temperature: float | None = None,
) -> None:
    """Evaluate one set of weights and write `eval/<label>.json`. Does nothing when that exists.

    Args:
        context: of the module.
        label: name of the evaluation.
        version: of the published weights; None for the newest.
        model: a directory, instead of a version.
        trained_only: leave out the tasks beside.
        temperature: None for the configured one.
    """
    target = context.run.evaluation(label)
    if target.exists():
        return
    weights = _weights(context, version, model)
    config = context.config
    chosen = config.evaluation.temperature if temperature is None else temperature
    assignments = plan(config, trained_only=trained_only)
    progress = context.progress()
    started = time.time()

    def told(done: int, episode: PlayedEpisode) -> None:
        progress.say(done, len(assignments), f"{episode.assignment.task_id}: {episode.terminal}")

    played = asyncio.run(_play_all(context, weights, assignments, chosen, told))
    rows = [_row(episode, context.run, label, config) for episode in played]
    facts = {"label": label, "version": weights.version, "temperature": chosen, "seconds": time.time() - started}
    write_json(target, {**facts, "episodes": rows})


def _weights(context: ModuleContext, version: int | None, model: Path | None) -> Weights:
    if model is not None:
        check_model(model)
        return Weights(str(model), 0)
    with context.open_data() as data:
        if version is not None:
            version = min(version, max((row.version for row in data.checkpoints()), default=0))
        row = published(data, version)
    return Weights(row.path, row.version)


def plan(config: RunConfig, *, trained_only: bool = False) -> list[Assignment]:
    """What is played, task by task: equal for every evaluation of a run, so that they compare."""
    evaluation = config.evaluation
    limits = {entry.id: entry.max_steps for entry in config.rollout.tasks}
    counts = [(task, evaluation.episodes) for task in config.train_tasks]
    counts += [] if trained_only else [(task, evaluation.beside_episodes) for task in evaluation.beside]
    return [
        Assignment(
            task_id=task,
            seed=evaluation.first_seed + index,
            group_key="",
            n=0,
            attempt=0,
            sampling_seed=config.seed * FIRST_TRAINING_SEED + index,
            max_steps=limits.get(task) or config.rollout.max_steps,
        )
        for task, count in counts
        for index in range(count)
    ]


async def _play_all(
    context: ModuleContext,
    weights: Weights,
    assignments: list[Assignment],
    temperature: float,
    told: Callable[[int, PlayedEpisode], None],
) -> list[PlayedEpisode]:
    """All episodes, in the order of `assignments`."""
    rollout = context.config.rollout
    sampling = rollout.sampling.model_copy(update={"temperature": temperature})
    factory = make_policy(weights.path, context.config.agent, sampling)
    with socket_directory() as directory:
        async with EnginePool(
            rollout.engine, weights, directory=directory, log_dir=context.run.logs, sync=rollout.sync
        ) as pool:
            client = context.client()
            return await play_all(
                client, assignments, lambda _: factory(EpisodeEngine(pool)), workers=rollout.workers, told=told
            )


def _row(episode: PlayedEpisode, run: RunDirectory, label: str, config: RunConfig) -> dict[str, Any]:
    assignment = episode.assignment
    row: dict[str, Any] = {
        "task_id": assignment.task_id,
        "seed": assignment.seed,
        "instruction": episode.instruction,
        "reward": episode.reward,
        "terminal": str(episode.terminal),
        "steps": len(episode.steps),
    }
    if assignment.seed < config.evaluation.first_seed + config.evaluation.samples:
        row["frames"] = _frames(episode, run, label)
    return row


def _frames(episode: PlayedEpisode, run: RunDirectory, label: str) -> list[dict[str, Any]]:
    """Write the screenshots of a sample beside the evaluation; paths are relative to the run's directory."""
    folder = run.root / "eval" / label
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    for number, step in enumerate(episode.steps):
        if step.decision.prompt is None:
            continue
        slug = episode.assignment.task_id.replace("/", "-")
        path = folder / f"{slug}.{episode.assignment.seed}.{number}.png"
        Image.fromarray(step.decision.prompt.images[-1]).save(path)
        actions = [action_to_dict(action) for action in step.decision.actions]
        relative = str(path.relative_to(run.root))
        frames.append({"png": relative, "actions": actions, "text": step.decision.text})
    return frames
