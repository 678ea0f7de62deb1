"""Evaluates a version of a run on held-out seeds, as `dart-agent eval` does: what "before" and "after" are made of.

The directory `eval/<label>` is that of an evaluation (`dart_agent.evaluation.evaluation_directory`): every episode is
recorded there, a killed evaluation resumes from it, and `dart-agent compare`, `view` and `export` read it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dart_agent.episodes.play_list import EpisodeKey, play_list
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.evaluation.evaluation_directory import EvaluationDirectory, Plan
from dart_agent.evaluation.score_tables import score_row
from dart_agent.evaluation.scores import score_task
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.utils.owned_directories import owned_directory
from dart_train.config.run_config import RunConfig
from dart_train.core.train_errors import DartTrainError
from dart_train.nodes.run_on_nodes import engines_on_nodes
from dart_train.processes.process_context import ProcessContext, check_model, published
from dart_train.processes.run_policy import make_policy
from dart_train.rollout.fleet.engine_pool import EnginePool, EpisodeEngine
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.settings.rollout_config import EnginePlaces, SamplingConfig

_log = logging.getLogger(__name__)
ATTEMPTS = 4
"""How often an episode that the environment loses is played."""


class EpisodeLost(DartTrainError):
    """No episode of an evaluation could be played to a score."""


def main(
    context: ProcessContext,
    *,
    label: str,
    version: int | None = None,
    model: Path | None = None,
    trained_only: bool = False,
    temperature: float | None = None,
    places: EnginePlaces = EnginePlaces(),
) -> None:
    """Evaluate one set of weights into `eval/<label>`. Does nothing when its scores exist."""
    target = context.run.scores(label)
    if target.exists():
        return
    weights = _weights(context, version, model)
    evaluation, rollout = context.config.evaluation, context.config.rollout
    sampling = rollout.sampling
    chosen = evaluation.temperature if temperature is None else temperature
    sampling = sampling.model_copy(update={"temperature": chosen})
    keys = planned(context.config, trained_only=trained_only)
    plan = Plan(
        policy=f"version {weights.version}" if model is None else str(model),
        tasks=tuple(dict.fromkeys(task for task, _ in keys)),
        seeds=tuple(dict.fromkeys(seed for _, seed in keys)),
        max_steps=rollout.max_steps,
        settings={"agent": context.config.agent.model_dump(), "sampling": sampling.model_dump()},
    )
    started = time.time()
    with EvaluationDirectory(target.parent, plan) as directory:
        known = len(directory.known().keys() & set(keys))
        told = context.progress().counter(len(keys), done=known)
        outcomes = asyncio.run(
            _play(
                context, weights, sampling, keys, directory, places, lambda one: told(f"{one.task_id}: {one.terminal}")
            )
        )
        check_counted(outcomes)
        scores = [score_task(task, [one for one in outcomes if one.task_id == task]) for task in plan.tasks]
        lost = sum(bool(one.lost_by) for one in outcomes)
        facts = {"label": label, "version": weights.version, "temperature": chosen, "seconds": time.time() - started}
        facts["lost"] = lost
        rows = [{"task_id": one.task_id, "seed": one.seed, "score": one.score} for one in outcomes]
        directory.write_scores({**facts, "scores": [score_row(score) for score in scores], "episodes": rows})


def planned(config: RunConfig, *, trained_only: bool = False) -> list[EpisodeKey]:
    """Return the tasks and seeds to play: the same for every evaluation of a run, so that results can be compared."""
    evaluation = config.evaluation
    counts = [(task, evaluation.episodes) for task in config.train_tasks]
    counts += [] if trained_only else [(task, evaluation.beside_episodes) for task in evaluation.beside]
    return [(task, index) for task, count in counts for index in range(count)]


def task_steps(config: RunConfig) -> dict[str, int | None]:
    """Most actions by task id, of tasks that have a limit of their own in the run."""
    return {entry.id: entry.max_steps for entry in config.rollout.tasks}


def policy_seeds(config: RunConfig) -> int:
    """Added to an episode's seed, this is the seed of the policy's own choices: other runs choose otherwise."""
    return config.seed * FIRST_TRAINING_SEED


def check_counted(outcomes: Sequence[Trajectory]) -> None:
    """Report which episodes were lost in every attempt.

    Raises:
        EpisodeLost: if all episodes were.
    """
    said = say_lost(outcomes)
    if outcomes and all(one.lost_by for one in outcomes):
        raise EpisodeLost(f"{said}; the cluster's log may say why, and the same command goes on here")


def say_lost(outcomes: Sequence[Trajectory]) -> str:
    """Log how many episodes were lost in every attempt, and return it: they have no score, the others count."""
    lost = [one for one in outcomes if one.lost_by]
    if not lost:
        return ""
    by_task = Counter(one.task_id for one in lost)
    first = lost[0]
    said = (
        f"{len(lost)} of {len(outcomes)} episodes were lost and have no score, of {len(by_task)} tasks "
        f"({', '.join(list(by_task)[:10])}), such as {first.task_id} seed {first.seed}, lost {first.attempts} times: "
        f"{first.terminal}, {first.detail or 'no detail'}"
    )
    _log.warning("%s", said)
    return said


def _weights(context: ProcessContext, version: int | None, model: Path | None) -> Weights:
    if model is not None:
        check_model(model)
        return Weights(str(model), 0)
    with context.open_data() as data:
        if version is not None:
            version = min(version, max((row.version for row in data.checkpoints()), default=0))
        row = published(data, version)
    return Weights(row.path, row.version, row.url)


async def _play(
    context: ProcessContext,
    weights: Weights,
    sampling: SamplingConfig,
    keys: Sequence[EpisodeKey],
    directory: EvaluationDirectory,
    places: EnginePlaces,
    on_episode: Callable[[Trajectory], None],
) -> list[Trajectory]:
    """The outcomes of all episodes, in the order of `keys`."""
    config = context.config
    rollout = config.rollout
    factory = make_policy(weights.path, config.agent, sampling)
    with owned_directory("engines") as sockets:
        async with EnginePool(
            rollout.engine,
            weights,
            directory=sockets,
            log_dir=context.run.logs,
            sync=rollout.sync,
            places=places,
            on_wait=context.progress().waits,
            nodes=engines_on_nodes(config, context.run),
        ) as pool:
            return await play_list(
                context.client(),
                lambda session: factory(EpisodeEngine(pool)),
                keys,
                concurrency=rollout.workers,
                attempts=ATTEMPTS,
                max_steps=rollout.max_steps,
                task_steps=task_steps(config),
                policy_seeds=policy_seeds(config),
                pacing=rollout.pacing,
                store=directory,
                on_episode=on_episode,
            )
