"""Plays policies on tasks and counts: one episode, or a policy on tasks times seeds with confidence intervals.

Invariants:
    - An episode that the environment or its evaluator lost has no score. It is played again a few times, then
      reported as lost; it never counts as a failure of the policy.
    - A success is a score of 1. The interval is Wilson's, which holds for few episodes and for rates near 0 and 1.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from dart_agent.policies.policy import Decision, Episode, Policy
from dart_gym.actions import Action
from dart_gym.cluster.client import ClusterClient
from dart_gym.cluster.local import LocalCluster
from dart_gym.outcomes import Evaluation, Observation, StepResult, TerminalState

ATTEMPTS = 3
"""How often an episode that the environment lost is played."""


class PlayableSession(Protocol):
    """What of a session is needed: `dart_gym.session.Session` and the cluster's client both have it."""

    async def reset(
        self, task: str, *, seed: int, max_steps: int | None = None, pacing: str | None = None
    ) -> StepResult:
        """Start an episode."""

    async def step(self, action: Action) -> StepResult:
        """Carry out one action."""

    async def finish(self, terminal: TerminalState) -> StepResult:
        """End the episode from the policy's side."""

    async def oracle(self) -> Action:
        """The next action of a perfect user."""


class SessionSource(Protocol):
    """Where sessions come from: `dart_gym.cluster.client.ClusterClient` is one."""

    def session(self) -> AbstractAsyncContextManager[Any]:
        """A new session, to be used with `async with`."""


PolicyFactory = Callable[[PlayableSession], Policy]
"""Makes the policy of one session."""

StepHook = Callable[[Observation, Decision, StepResult], None]
"""Told after each decision: what was seen, what was decided, what came of it (the last action's result)."""


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """How an episode went.

    Attributes:
        task_id: what was played.
        seed: of the task's initial state.
        instruction: as the policy saw it.
        terminal: how it ended.
        evaluation: the score, or why there is none.
        steps: actions carried out.
        error: what the policy could not parse or answer; "" if nothing.
        seconds: wall time by phase: "reset", "policy", "step".
    """

    task_id: str
    seed: int
    instruction: str
    terminal: TerminalState
    evaluation: Evaluation
    steps: int
    error: str
    seconds: dict[str, float]

    @property
    def score(self) -> float | None:
        """Score in [0, 1]; None where there is none."""
        return self.evaluation.score

    @property
    def success(self) -> bool:
        """Whether the task was accomplished."""
        return self.score is not None and self.score >= 1.0

    @property
    def lost(self) -> bool:
        """Whether environment, evaluator or engine failed, so that it says nothing about the policy."""
        return self.score is None or not self.terminal.trainable


async def play_episode(
    session: PlayableSession,
    policy: Policy,
    task_id: str,
    *,
    seed: int = 0,
    policy_seed: int | None = None,
    max_steps: int | None = None,
    on_step: StepHook | None = None,
) -> PlayedEpisode:
    """Play one episode to its end.

    Args:
        session: a desktop.
        policy: who decides; `begin` is called here.
        task_id: what to play.
        seed: of the task's initial state.
        policy_seed: of the policy's own choices; `seed` where None.
        max_steps: step limit; None for the task's own.
        on_step: told after each decision.

    Raises:
        dart_gym.errors.DartGymError: the task is unknown, or the cluster cannot be reached.
    """
    seconds = {"reset": 0.0, "policy": 0.0, "step": 0.0}
    with _timed(seconds, "reset"):
        result = await session.reset(task_id, seed=seed, max_steps=max_steps)
    instruction, error = result.observation.instruction, ""
    policy.begin(Episode(task_id, instruction, seed if policy_seed is None else policy_seed))
    while result.terminal is None:
        observation = result.observation
        with _timed(seconds, "policy"):
            decision = await policy.act(observation)
        error = decision.error
        with _timed(seconds, "step"):
            result = await carry_out(session, decision)
        if on_step is not None:
            on_step(observation, decision, result)
    if result.evaluation is None:  # StepResult guarantees it
        raise RuntimeError(f"{task_id} ended as {result.terminal} without an evaluation")
    return PlayedEpisode(
        task_id, seed, instruction, result.terminal, result.evaluation, result.step_index, error, seconds
    )


async def carry_out(session: PlayableSession, decision: Decision) -> StepResult:
    """Perform the actions of a decision until the episode ends, or end it where the policy gave up.

    Raises:
        ValueError: neither actions nor a terminal state.
    """
    if decision.terminal is not None:
        return await session.finish(decision.terminal)
    if not decision.actions:
        raise ValueError("a policy must decide on at least one action or set Decision.terminal")
    for action in decision.actions:
        result = await session.step(action)
        if result.terminal is not None:
            break
    return result


class _timed:
    """Adds the time spent inside to one entry of a dict."""

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self._seconds[self._name] += time.perf_counter() - self._start


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Successes of a policy on one task, or on all of them together.

    Attributes:
        task_id: the task; "all" for the sum.
        episodes: those with a score.
        successes: those with a score of 1.
        lost: those that the environment lost in every attempt; not in `episodes`.
        mean_score: mean of the scores; NaN without episodes.
        low: lower end of the 95 % interval of the success rate.
        high: upper end.
        mean_steps: mean number of actions.
        terminals: how episodes ended.
    """

    task_id: str
    episodes: int
    successes: int
    lost: int
    mean_score: float
    low: float
    high: float
    mean_steps: float
    terminals: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Share of successes; NaN without episodes."""
        return self.successes / self.episodes if self.episodes else math.nan

    def __str__(self) -> str:
        interval = f"95 % interval {self.low:.2f} to {self.high:.2f}"
        lost = f", {self.lost} lost" if self.lost else ""
        return f"{self.task_id}: {self.successes} of {self.episodes} episodes, {interval}{lost}"


def wilson_interval(successes: int, episodes: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's confidence interval of a rate (95 % by default); (0, 1) where nothing was tried.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927): the p for which |p - s/n| <= z sqrt(p (1 - p) / n).
    """
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes in {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    rate = successes / episodes
    scale = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == episodes else centre + half)


def score_task(task_id: str, episodes: Sequence[PlayedEpisode]) -> TaskScore:
    """Count the episodes of one task (or of several, under a common name)."""
    scored = [episode for episode in episodes if not episode.lost]
    successes = sum(episode.success for episode in scored)
    low, high = wilson_interval(successes, len(scored))
    return TaskScore(
        task_id=task_id,
        episodes=len(scored),
        successes=successes,
        lost=len(episodes) - len(scored),
        mean_score=_mean([episode.score or 0.0 for episode in scored]),
        low=low,
        high=high,
        mean_steps=_mean([episode.steps for episode in scored]),
        terminals=dict(Counter(str(episode.terminal) for episode in episodes)),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


async def evaluate(
    sessions: SessionSource,
    make_policy: PolicyFactory,
    tasks: Sequence[str],
    seeds: Iterable[int],
    *,
    concurrency: int = 1,
    max_steps: int | None = None,
    attempts: int = ATTEMPTS,
    on_episode: Callable[[PlayedEpisode], None] | None = None,
) -> list[TaskScore]:
    """Play every task with every seed.

    Args:
        sessions: a `ClusterClient`, or whatever opens sessions.
        make_policy: makes one policy per session.
        tasks: ids.
        seeds: of the initial states; also the policies' own.
        concurrency: sessions at the same time.
        max_steps: step limit; None for the tasks' own.
        attempts: how often an episode is played that the environment loses.
        on_episode: told about each episode that counts, as it ends.

    Returns:
        One score per task in the order of `tasks`.

    Raises:
        dart_gym.errors.DartGymError: a task is unknown, or the cluster cannot be reached.
    """
    seeds = list(seeds)
    work = [(task, seed) for task in tasks for seed in seeds][::-1]  # task by task: a task change costs
    played: dict[str, list[PlayedEpisode]] = {task: [] for task in tasks}

    async def player() -> None:
        if not work:
            return
        async with sessions.session() as session:
            policy = make_policy(session)
            while work:
                task, seed = work.pop()
                for _ in range(attempts):
                    episode = await play_episode(session, policy, task, seed=seed, max_steps=max_steps)
                    if not episode.lost:
                        break
                played[task].append(episode)
                if on_episode is not None:
                    on_episode(episode)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, concurrency)):
                group.create_task(player())
    except ExceptionGroup as group_error:  # what one player met ended the others: it is what there is to say
        raise group_error.exceptions[0] from None
    return [score_task(task, played[task]) for task in tasks]


@asynccontextmanager
async def open_cluster(
    url: str | None = None, token: str | None = None, *, desktops: int = 1
) -> AsyncIterator[ClusterClient]:
    """A running cluster, or without a URL a private one, which ends with the context.

    Args:
        url: `ws+unix:///path.sock`, `ws://host:port` or `wss://host:port`.
        token: bearer token, if the cluster wants one.
        desktops: how many the private cluster may run at once.
    """
    if url is not None:
        yield ClusterClient(url, token)
    else:
        async with LocalCluster(desktops) as local:
            yield local.client()


async def evaluate_policy(
    make_policy: Callable[[], Policy],
    tasks: Sequence[str],
    *,
    episodes: int = 10,
    first_seed: int = 0,
    concurrency: int = 2,
    max_steps: int | None = None,
    url: str | None = None,
    token: str | None = None,
    on_episode: Callable[[PlayedEpisode], None] | None = None,
) -> list[TaskScore]:
    """Score a policy of one's own, cluster included: `evaluate` for those who have only a class.

        scores = asyncio.run(evaluate_policy(MyPolicy, ["miniwob/click-test"], episodes=5))

    Args:
        make_policy: called without arguments, once per desktop: a class, or a function that returns a policy.
        tasks: ids.
        episodes: per task, with the seeds `first_seed`, `first_seed + 1`, ...
        first_seed: see there.
        concurrency: desktops at the same time.
        max_steps: step limit; None for the tasks' own.
        url: of a running cluster; None starts a private one.
        token: of that cluster.
        on_episode: told about each episode that counts, as it ends.

    Returns:
        One score per task in the order of `tasks`.

    Raises:
        dart_gym.errors.DartGymError: a task is unknown, or no cluster can be started or reached.
    """
    async with open_cluster(url, token, desktops=concurrency) as client:
        return await evaluate(
            client,
            lambda session: make_policy(),
            tasks,
            range(first_seed, first_seed + episodes),
            concurrency=concurrency,
            max_steps=max_steps,
            on_episode=on_episode,
        )


def total_score(scores: Sequence[TaskScore]) -> TaskScore:
    """All tasks together, every episode counting alike."""
    episodes, successes = sum(s.episodes for s in scores), sum(s.successes for s in scores)
    low, high = wilson_interval(successes, episodes)
    terminals: Counter[str] = Counter()
    for score in scores:
        terminals.update(score.terminals)
    counted = [score for score in scores if score.episodes]
    return TaskScore(
        task_id="all",
        episodes=episodes,
        successes=successes,
        lost=sum(s.lost for s in scores),
        mean_score=sum(s.mean_score * s.episodes for s in counted) / episodes if episodes else math.nan,
        low=low,
        high=high,
        mean_steps=sum(s.mean_steps * s.episodes for s in counted) / episodes if episodes else math.nan,
        terminals=dict(terminals),
    )
