"""Difficulty of tasks: scores, on held-out seeds, of policies that look at neither screen nor instruction.

random      clicks, texts, keys and scrolls by chance, as many as the task allows
click       the best of the places where the oracle clicks most, clicked at every step
replay      the actions by which the oracle solved another seed, the best of three
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dart_agent.policies.policy import Episode
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.core.actions import Action, Click
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.parameters import FIRST_TRAINING_SEED
from dart_gym.tasks.catalog.registry import get_task
from dart_lab.controls.constant_click import densest

ORACLES, REPLAYED = 8, 3
"""Training seeds on which the oracle is followed, and the ones of them that provide actions to replay."""


async def measure(tasks: Sequence[str], seeds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row a task: mean actions of the oracle, and the share of episodes that each policy solves."""
    rows = []
    async with Session() as session:
        for task in tasks:
            say(task)
            ways = [await _oracle(session, task, FIRST_TRAINING_SEED + seed) for seed in range(ORACLES)]
            clicks = [(one.x, one.y) for way in ways for one in way if isinstance(one, Click)]
            places = densest([(x, y) for x, y in clicks if x is not None and y is not None])
            steps = get_task(task).max_steps
            constant = [await _share(session, task, seeds, [Click(x, y)] * steps) for x, y in places]
            rows.append(
                {
                    "task": task,
                    "actions": sum(map(len, ways)) / len(ways),
                    "random": await _share(session, task, seeds),
                    "click": max(constant, default=0.0),
                    "replay": max([await _share(session, task, seeds, way) for way in ways[:REPLAYED]]),
                }
            )
    return rows


async def _oracle(session: Session, task: str, seed: int) -> list[Action]:
    """The actions of a perfect user."""
    actions: list[Action] = []
    result = await session.reset(task, seed=seed)
    while result.terminal is None:
        actions.append(await session.oracle())
        result = await session.step(actions[-1])
    if result.evaluation is None or result.evaluation.score != 1.0:
        raise RuntimeError(f"the oracle does not solve {task} seed {seed}: {result.evaluation}")
    return actions


async def _share(session: Session, task: str, seeds: int, actions: Sequence[Action] = ()) -> float:
    """Share of episodes that the same actions solve regardless of the screen, or random ones."""
    solved, policy = 0, RandomPolicy(clicks_only=False)
    for seed in range(seeds):
        result = await session.reset(task, seed=seed)
        policy.reset(Episode(task, result.observation.instruction, seed))
        taken = 0
        while result.terminal is None and (not actions or taken < len(actions)):
            action = actions[taken] if actions else (await policy.act(result.observation)).actions[0]
            result = await session.step(action)
            taken += 1
        solved += result.evaluation is not None and result.evaluation.score == 1.0
    return solved / seeds
