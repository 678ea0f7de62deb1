"""The best constant click of a task: what a policy reaches that looks at neither screen nor instruction.

Candidates are the places where the oracle's clicks lie densest. Each is played on real desktops, clicked at every
step, and the best one counts: chosen on the very seeds that it is scored on, which favours the baseline.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.actions import Click
from dart_gym.core.outcomes import Observation
from dart_train.config.run_config import RunConfig
from dart_train.modules.module_context import ModuleContext
from dart_train.rollout.play.episode_batch import play_all
from dart_train.rollout.play.rollout_episode import PlayedEpisode
from dart_train.rollout.schedule.scheduler import Assignment
from dart_train.run.run_directory import write_json

CANDIDATES = 4
RADIUS = 8
"""Clicks within so many pixels count as one place."""

Point = tuple[int, int]


def densest(points: Sequence[Point], count: int = CANDIDATES, radius: float = RADIUS) -> list[Point]:
    """The places with the most points around them, each at least twice `radius` from the ones before."""
    left, chosen = list(points), list[Point]()
    while left and len(chosen) < count:
        best = max(left, key=lambda point: sum(math.dist(point, other) <= radius for other in left))
        chosen.append(best)
        left = [point for point in left if math.dist(point, best) > 2 * radius]
    return chosen


class ConstantClicker:
    """Clicks where the episode's seed table says, whatever it sees."""

    def __init__(self, places: dict[tuple[str, int], Point]) -> None:
        self._places = places
        self._place: Point = (0, 0)

    def reset(self, episode: Episode) -> None:
        """Look up the place: the sampling seed carries the candidate's number."""
        self._place = self._places[episode.task_id, episode.seed]

    async def act(self, observation: Observation) -> Decision:
        """Click there."""
        x, y = self._place
        return Decision(actions=(Click(x=x, y=y),))


def main(context: ModuleContext) -> None:
    """Write `eval/constant.json`. Does nothing when that exists."""
    target = context.run.evaluation("constant")
    if target.exists():
        return
    config = context.config
    clicks = _oracle_clicks(context)
    places = {(task, number): place for task, points in clicks.items() for number, place in enumerate(densest(points))}
    assignments = [
        Assignment(task, config.evaluation.first_seed + index, "", 0, 0, number, _limit(config, task))
        for task, number in places
        for index in range(config.controls.constant_click_seeds)
    ]
    progress = context.progress()

    def told(done: int, episode: PlayedEpisode) -> None:
        progress.say(done, len(assignments), episode.assignment.task_id)

    played = asyncio.run(
        play_all(
            context.client(),
            assignments,
            lambda _: ConstantClicker(places),
            workers=config.rollout.workers,
            told=told,
        )
    )
    write_json(target, {"label": "constant", "tasks": best_by_task(played, places)})


def _limit(config: RunConfig, task: str) -> int | None:
    limits = {entry.id: entry.max_steps for entry in config.rollout.tasks}
    return limits.get(task) or config.rollout.max_steps


def _oracle_clicks(context: ModuleContext) -> dict[str, list[Point]]:
    """Where the demonstrations click, by trained task."""
    clicks: dict[str, list[Point]] = {task: [] for task in context.config.train_tasks}
    with context.open_data() as data:
        for trajectory in data.trajectories(source="oracle"):
            for step in trajectory.steps:
                for action in step.actions:
                    if action.get("kind") == "click" and action.get("x") is not None and trajectory.task_id in clicks:
                        clicks[trajectory.task_id].append((action["x"], action["y"]))
    return clicks


def best_by_task(played: Sequence[PlayedEpisode], places: dict[tuple[str, int], Point]) -> dict[str, dict[str, object]]:
    """Success of the best place of every task."""
    scores: dict[tuple[str, int], list[float]] = {}
    for episode in played:
        key = (episode.assignment.task_id, episode.assignment.sampling_seed)
        scores.setdefault(key, []).append(float((episode.reward or 0.0) > 0.5))
    result: dict[str, dict[str, object]] = {}
    for (task, number), values in scores.items():
        rate = sum(values) / len(values)
        if task not in result or rate > result[task]["rate"]:  # type: ignore[operator]
            result[task] = {"rate": rate, "place": list(places[task, number]), "episodes": len(values)}
    return result
