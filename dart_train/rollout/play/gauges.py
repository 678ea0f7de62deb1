"""Measurements of the rollout service about itself: phases, successes, staleness, rates over a sliding window."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.cluster.server.server_metrics import BROKEN_BY
from dart_train.rollout.fleet.replica import Replica
from dart_train.rollout.play.rollouts import PHASES

BUSY_PHASES = frozenset({"reset", "step"})
"""Phases in which the desktop works; in the others it waits for a policy or a rollout."""


class PhaseClock:
    """The current phase of each worker, and the total seconds of all workers by phase."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase = ["idle"] * workers
        self._since = [clock()] * workers
        self._seconds = dict.fromkeys(PHASES, 0.0)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._phase)

    def enter(self, worker: int, phase: str) -> None:
        """Note that a worker begins a phase."""
        now = self._clock()
        self._seconds[self._phase[worker]] += now - self._since[worker]
        self._phase[worker], self._since[worker] = phase, now

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase until now, including the running phases."""
        now = self._clock()
        total = dict(self._seconds)
        for phase, since in zip(self._phase, self._since, strict=True):
            total[phase] += now - since
        return total

    def counts(self) -> dict[str, int]:
        """Return the number of workers by current phase."""
        return dict(Counter(self._phase))


class SuccessWindow:
    """Mean reward of every task's newest rollouts."""

    def __init__(self, tasks: Iterable[str], size: int = 64) -> None:
        self._rewards: dict[str, deque[float]] = {task: deque(maxlen=size) for task in tasks}

    def add(self, task_id: str, reward: float) -> None:
        """Note the reward of a scored rollout."""
        self._rewards[task_id].append(reward)

    def means(self) -> dict[str, float | None]:
        """Return the mean reward by task; None before the first rollout."""
        return {task: sum(rewards) / len(rewards) if rewards else None for task, rewards in self._rewards.items()}


class Totals:
    """Sums over the life of the service, and their growth over the last seconds."""

    def __init__(self, window_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._window = clock, window_s
        self._history: deque[tuple[float, dict[str, float]]] = deque([(clock(), {})])
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.terminals: Counter[str] = Counter()

    def add(self, trajectory: Trajectory) -> None:
        """Add an episode that has ended."""
        self.sums["episodes"] += 1
        self.sums["actions"] += trajectory.num_actions
        self.sums["steps"] += len(trajectory.steps)
        for phase, seconds in trajectory.timings.items():
            self.sums[f"{phase}_s"] += seconds
        self.terminals[str(trajectory.terminal)] += 1

    def rates(self, **more: float) -> tuple[float, dict[str, float]]:
        """Return the seconds of the window, and the growth of all sums and of the given numbers in it, by name."""
        now = self._clock()
        current = {**self.sums, **more}
        self._history.append((now, current))
        while len(self._history) > 2 and now - self._history[1][0] >= self._window:
            self._history.popleft()
        then, before = self._history[0]
        return max(now - then, 1e-9), {name: value - before.get(name, 0.0) for name, value in current.items()}


class Gauges:
    """All gauges of one service.

    Attributes:
        staleness: versions by which the oldest weights of the newest trainable rollouts lagged at their end.
    """

    def __init__(
        self, workers: int, tasks: Iterable[str], newest_version: Callable[[], int], *, window: int = 256
    ) -> None:
        self.clock = PhaseClock(workers)
        self.success = SuccessWindow(tasks)
        self.totals = Totals()
        self.staleness: deque[int] = deque(maxlen=window)
        self._newest_version = newest_version

    def add(self, trajectory: Trajectory) -> None:
        """Add an episode that has ended."""
        self.totals.add(trajectory)
        if trajectory.trainable and trajectory.score is not None:
            if not trajectory.forked_from:  # a continuation does not start at the beginning of its task
                self.success.add(trajectory.task_id, trajectory.score)
            self.staleness.append(max(0, self._newest_version() - trajectory.oldest_version))

    def figures(self, **growing: float) -> dict[str, Any]:
        """Return the metrics line of the gauges; for `growing` numbers the growth per second as "<name>_share"."""
        phases = self.clock.seconds()
        totals = self.totals
        staleness = self.staleness
        busy = sum(phases[phase] for phase in BUSY_PHASES)
        seconds, grown = totals.rates(busy=busy, waiting=phases["generate"], **growing)
        worker_seconds, episodes = seconds * self.clock.workers, grown.get("episodes", 0.0)
        return {
            "actions": int(totals.sums["actions"]),
            "episodes": int(totals.sums["episodes"]),
            "success": self.success.means(),
            "terminals": dict(totals.terminals),
            "broken_share": {
                by: totals.terminals[terminal] / max(totals.sums["episodes"], 1.0) for by, terminal in BROKEN_BY.items()
            },
            "desktops": self.clock.counts(),
            "phase_s": phases,
            "env_utilisation": min(1.0, grown["busy"] / worker_seconds),
            "engine_wait_share": min(1.0, grown["waiting"] / worker_seconds),
            "actions_per_min": 60.0 * grown.get("actions", 0.0) / seconds,
            "rollouts_per_s": episodes / seconds,
            "seconds_per_rollout": {
                name.removesuffix("_s"): value / episodes
                for name, value in grown.items()
                if name.endswith("_s") and episodes and name not in growing
            },
            "staleness": {"mean": sum(staleness) / len(staleness), "max": max(staleness)} if staleness else None,
            **{f"{name.removesuffix('_s')}_share": max(0.0, grown[name]) / seconds for name in growing},
        }


def engine_figures(replicas: Iterable[Replica]) -> list[dict[str, Any]]:
    """Return the metrics line of the engines."""
    return [
        {
            "name": replica.name,
            "state": str(replica.state),
            "version": replica.version,
            "verified": replica.verified,
            "busy_share": replica.busy_share,
            "in_flight": replica.in_flight,
            "limit": replica.concurrency.limit,
            "waiting": replica.info.waiting if replica.info else 0,
            "kv_use": replica.info.kv_use if replica.info else 0.0,
            "requests": replica.requests,
            "restarts": replica.restarts,
            "failures": replica.failures,
            "why_down": "" if replica.usable else replica.why_down,
        }
        for replica in replicas
    ]
