"""The best constant click of a task: the score of a policy that looks at neither screen nor instruction.

Candidates are the places where the oracle's clicks lie densest on training seeds. Each is played on real desktops,
clicked at every step, and the best one counts: chosen on the seeds that it is scored on, which favours the baseline.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from dart_agent.episodes.play_list import play_list
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode, PlayableSession
from dart_gym.core.actions import Click
from dart_gym.core.errors import NoOracleError
from dart_gym.core.outcomes import Observation
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_train.config.added_phases import AddedPhase
from dart_train.processes.evaluate_version import ATTEMPTS, say_lost, task_steps
from dart_train.processes.process_context import ProcessContext
from dart_train.run.run_directory import write_json

ORACLE_EPISODES = 20
"""Episodes of each task that the oracle plays to show where it clicks."""
CANDIDATES = 4
RADIUS = 8
"""Clicks within this distance, in pixels, count as one place."""

Point = tuple[int, int]
Candidate = tuple[str, int]
"""(task id, number of the place) of a place that is tried."""


def densest(points: Sequence[Point], count: int = CANDIDATES, radius: float = RADIUS) -> list[Point]:
    """The places with the most points around them, each at least twice `radius` from the ones before."""
    left, chosen = list(points), list[Point]()
    while left and len(chosen) < count:
        best = max(left, key=lambda point: sum(math.dist(point, other) <= radius for other in left))
        chosen.append(best)
        left = [point for point in left if math.dist(point, best) > 2 * radius]
    return chosen


class ConstantClicker:
    """Clicks at one place of each task, regardless of the screen."""

    def __init__(self, places: Mapping[str, Point]) -> None:
        self._places = places
        self._place: Point = (0, 0)

    @classmethod
    def of_session(cls, places: Mapping[str, Point], session: PlayableSession) -> ConstantClicker:
        """The policy of one session, which it does not look at."""
        return cls(places)

    def reset(self, episode: Episode) -> None:
        """Look up the place."""
        self._place = self._places[episode.task_id]

    async def act(self, observation: Observation) -> Decision:
        """Click there."""
        x, y = self._place
        return Decision(actions=(Click(x=x, y=y),))


class NotingOracle:
    """Acts as the oracle of a session, and notes where it clicks."""

    def __init__(self, clicks: list[Point], session: PlayableSession) -> None:
        self._clicks = clicks
        self._oracle = OraclePolicy(session.oracle)

    def reset(self, episode: Episode) -> None:
        """Begin an episode."""
        self._oracle.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        """Do what the oracle does."""
        decision = await self._oracle.act(observation)
        for action in decision.actions:
            if isinstance(action, Click) and action.x is not None and action.y is not None:
                self._clicks.append((action.x, action.y))
        return decision


class ConstantClick(AddedPhase):
    """Measure the best constant click of every trained task, and write the scores of `eval/constant`."""

    seeds: int = Field(100, ge=1, description="Seeds on which constant clicks are measured.")

    @property
    def title(self) -> str:
        """Return the name for people."""
        return "constant click"

    def main(self, context: ProcessContext) -> None:
        """Write the scores. Does nothing when they exist."""
        target = context.run.scores("constant")
        if target.exists():
            return
        clicks = asyncio.run(_oracle_clicks(context))
        places = {
            (task, number): place for task, points in clicks.items() for number, place in enumerate(densest(points))
        }
        results = asyncio.run(_play(context, places, self.seeds))
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, {"label": "constant", "tasks": best_by_task(results, places)})


async def _play(
    context: ProcessContext, places: Mapping[Candidate, Point], count: int
) -> list[tuple[Candidate, float]]:
    """The scores of all candidates: first episodes with every task's first place, then with the second ones, ..."""
    config, client = context.config, context.client()
    told = context.progress().counter(count * len(places))
    results = []
    for number in range(CANDIDATES):
        chosen = {task: place for (task, n), place in places.items() if n == number}
        outcomes = await play_list(
            client,
            functools.partial(ConstantClicker.of_session, chosen),
            [(task, index) for task in chosen for index in range(count)],
            concurrency=config.rollout.workers,
            attempts=ATTEMPTS,
            max_steps=config.rollout.max_steps,
            task_steps=task_steps(config),
            pacing=config.rollout.pacing,
            on_episode=lambda episode: told(episode.task_id),
        )
        say_lost(outcomes)
        results += [((one.task_id, number), one.score or 0.0) for one in outcomes if not one.lost_by]
    return results


async def _oracle_clicks(context: ProcessContext) -> dict[str, list[Point]]:
    """Where the oracle clicks, by trained task; nowhere for a task that has none."""
    config, clicks = context.config, dict[str, list[Point]]()
    for task in config.train_tasks:
        seen = clicks.setdefault(task, [])
        episodes = [(task, FIRST_TRAINING_SEED + index) for index in range(ORACLE_EPISODES)]
        try:
            await play_list(
                context.client(),
                functools.partial(NotingOracle, seen),
                episodes,
                concurrency=config.rollout.workers,
                attempts=ATTEMPTS,
            )
        except NoOracleError:
            print(f"{task} has no oracle: no constant click is tried", flush=True)
    return clicks


def best_by_task(
    results: Iterable[tuple[Candidate, float]], places: Mapping[Candidate, Point]
) -> dict[str, dict[str, object]]:
    """The best place of every task, its success and in how many episodes it was clicked."""
    scores: dict[Candidate, list[float]] = {}
    for candidate, score in results:
        scores.setdefault(candidate, []).append(float(score > 0.5))
    result: dict[str, dict[str, object]] = {}
    for (task, number), values in scores.items():
        rate = sum(values) / len(values)
        if task not in result or rate > result[task]["rate"]:  # type: ignore[operator]
            result[task] = {"rate": rate, "place": list(places[task, number]), "episodes": len(values)}
    return result
