"""What the rollout service measures about itself: desktop phases, successes, rates over a sliding window."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from dart_train.rollout.episode import PHASES, PlayedEpisode
from dart_train.rollout.replica import Replica

BUSY_PHASES = frozenset({"reset", "step"})
"""Phases in which the desktop itself works; during the others it waits for a policy or for a rollout."""


class PhaseClock:
    """Which phase every slot is in, and seconds spent in each phase by all slots together."""

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase = ["idle"] * slots
        self._since = [clock()] * slots
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def enter(self, slot: int, phase: str) -> None:
        """A slot begins a phase."""
        now = self._clock()
        self._seconds[self._phase[slot]] += now - self._since[slot]
        self._phase[slot], self._since[slot] = phase, now

    def seconds(self) -> dict[str, float]:
        """Seconds by phase until now, the running ones included."""
        now = self._clock()
        total = dict(self._seconds)
        for phase, since in zip(self._phase, self._since, strict=True):
            total[phase] += now - since
        return total

    def counts(self) -> dict[str, int]:
        """Slots by present phase."""
        return dict(Counter(self._phase))


class SuccessWindow:
    """Mean reward of every task's newest rollouts."""

    def __init__(self, tasks: Iterable[str], size: int = 64) -> None:
        self._rewards: dict[str, deque[float]] = {task: deque(maxlen=size) for task in tasks}

    def add(self, task_id: str, reward: float) -> None:
        """A scored rollout ended."""
        self._rewards[task_id].append(reward)

    def means(self) -> dict[str, float | None]:
        """Mean reward by task; None before the first rollout."""
        return {task: sum(rewards) / len(rewards) if rewards else None for task, rewards in self._rewards.items()}


class Totals:
    """Sums over the life of the service, and how they grew over the last seconds."""

    def __init__(self, window_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._window = clock, window_s
        self._history: deque[tuple[float, dict[str, float]]] = deque([(clock(), {})])
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.terminals: Counter[str] = Counter()

    def add(self, played: PlayedEpisode) -> None:
        """An episode ended."""
        self.sums["episodes"] += 1
        self.sums["actions"] += played.actions
        self.sums["steps"] += len(played.steps)
        for phase, seconds in played.timings.items():
            self.sums[f"{phase}_s"] += seconds
        self.terminals[str(played.terminal)] += 1

    def rates(self, **more: float) -> tuple[float, dict[str, float]]:
        """How much the sums, and the given ever-growing numbers, grew over the window.

        Returns:
            (seconds that the window covers, growth by name).
        """
        now = self._clock()
        current = {**self.sums, **more}
        self._history.append((now, current))
        while len(self._history) > 2 and now - self._history[1][0] >= self._window:
            self._history.popleft()
        then, before = self._history[0]
        return max(now - then, 1e-9), {name: value - before.get(name, 0.0) for name, value in current.items()}


def engine_figures(replicas: Iterable[Replica]) -> list[dict[str, Any]]:
    """The engines' part of a metrics line."""
    return [
        {
            "name": replica.name,
            "state": str(replica.state),
            "version": replica.version,
            "busy_share": replica.busy_share,
            "in_flight": replica.in_flight,
            "requests": replica.requests,
            "restarts": replica.restarts,
        }
        for replica in replicas
    ]
