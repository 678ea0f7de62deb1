"""Replay fidelity: how often an episode that is replayed on a fresh desktop shows the screens that were recorded.

Each task is played twice: by its oracle, and by random clicks, keys and words. Then the recorded actions are carried
out on another desktop with the same seed. Every step behind the first one is a place at which the episode could be
forked (`data.curation.forks`); it matches where at most `tolerance` of its screenshot's pixels differ, the pointer left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dart_agent.episodes.play import play
from dart_agent.episodes.screen_difference import difference, pointer_after
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode, PolicyFactory
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.core.actions import action_from_dict
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Observation
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import task_ids
from dart_lab.reporting.report import Aim, Report, percentile

TOLERANCES = (0.0, 0.0001, 0.0002, 0.0005, 0.002)
FIRST_SEED = 8_000
LEAST_SHARE = 0.95


class _Recorded:
    """Carries out the actions of recorded steps, and keeps what it sees instead."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self.seen: list[Observation] = []

    def reset(self, episode: Episode) -> None:
        self.seen = []

    async def act(self, observation: Observation) -> Decision:
        step = self._steps[len(self.seen)]
        self.seen.append(observation)
        return Decision(tuple(action_from_dict(action) for action in step.actions))


async def differences(task: str, seed: int, policy: PolicyFactory, steps: int) -> list[float]:
    """Return the share of pixels that differ at each place where an episode could be forked."""
    async with Session() as session:
        first = await play(policy(session), session, task, seed=seed, max_steps=steps)
    if len(first.steps) < 2:
        return []
    again = _Recorded(first.steps)
    async with Session() as session:
        await play(again, session, task, seed=seed, max_steps=steps)
    return _compare(first, again.seen)


def _compare(first: Trajectory, seen: Sequence[Observation]) -> list[float]:
    """Steps that the replay did not come to differ wholly."""
    found = []
    pointer = None
    for place, step in enumerate(first.steps):
        if place:
            before = step.pixels.screen if step.pixels is not None else None
            there = seen[place].screenshot if place < len(seen) else None
            if before is None or there is None:
                found.append(1.0)
            else:
                found.append(difference(before, there, step.screen, pointer))
        pointer = pointer_after(step, pointer)
    return found


async def measure(suites: Sequence[str], most: int, steps: int, say: Callable[[str], None]) -> Report:
    """Replay an oracle's and a random episode of at most `most` tasks of each suite."""
    players: dict[str, PolicyFactory] = {
        "oracle": lambda session: OraclePolicy(session.oracle),
        "random": lambda session: RandomPolicy(clicks_only=False),
    }
    keys: dict[str, float] = {}
    notes: list[str] = []
    everything: list[float] = []
    for suite in suites:
        own: list[float] = []
        worst: Counter[str] = Counter()
        ids = task_ids(suite)
        for task in ids[:: max(1, -(-len(ids) // most))]:
            for name, policy in players.items():
                try:
                    found = await differences(task, FIRST_SEED, policy, steps)
                except DartGymError as error:
                    notes.append(f"{task} ({name}) was not played: {error}")
                    continue
                own += found
                worst[task] += sum(share > max(TOLERANCES) for share in found)
            say(f"{task}: {len(own)} places of {suite}, {sum(own) / max(1, len(own)):.4%} of pixels differ")
        if own:
            keys[f"{suite}.places"] = len(own)
            keys |= {f"{suite}.match_{tolerance:g}": share_within(own, tolerance) for tolerance in TOLERANCES}
            everything += own
        notes += [
            f"{task}: {count} places differ in more than {max(TOLERANCES):.1%}" for task, count in (+worst).items()
        ]
    if everything:
        keys["all.places"] = len(everything)
        keys |= {f"all.match_{tolerance:g}": share_within(everything, tolerance) for tolerance in TOLERANCES}
        keys["all.difference_p90"] = percentile(everything, 0.9)
    return Report("replay", keys, {"all.match_0.0001": Aim(LEAST_SHARE, at_most=False)}, notes)


def share_within(differing: Sequence[float], tolerance: float) -> float:
    """Return the share of places that differ by at most the given amount."""
    return sum(share <= tolerance for share in differing) / len(differing)
