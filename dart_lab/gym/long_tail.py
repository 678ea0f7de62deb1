"""Three ways to drive desktops under one long-tailed workload: a barrier, send and recv, a coroutine for each.

The workload is a policy's: before each step it thinks, for a time drawn from a log-normal distribution (most are
short, a few very long, as lengths of generated texts are), and episodes differ in length. Episode `n` is the same in
all three ways, and each way gets the same wall-clock time. The work done in it is counted: finished episodes,
and of those under way the share of their steps, so that long ones are not favoured or punished.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dart_gym.cluster.client.cluster_client import ClientSession, ClusterClient
from dart_gym.core.actions import Action, Done, Move
from dart_gym.core.errors import ClusterError
from dart_gym.envs.vector_env import DesktopVectorEnv

TASK = "miniwob/click-test"
THINK_MEDIAN_S = 0.1
THINK_SPREAD = 1.8
THINK_CAP_S = 20.0
STEPS_MEDIAN = 4.0
STEPS_SPREAD = 0.8
STEPS_CAP = 30
MAX_STEPS = STEPS_CAP + 1  # so that the policy ends every episode


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of the workload: its number, and the seconds that the policy thinks before each step."""

    number: int
    think_s: tuple[float, ...]

    def action(self, step: int) -> Action:
        """The action of a step: the pointer moves until the last one ends the episode."""
        if step == len(self.think_s) - 1:
            return Done()
        return Move(10 + 7 * step % 100, 60 + 5 * step % 100)


def episode(number: int) -> Episode:
    """Episode `number` of the workload. Pure."""
    rng = random.Random(number)
    count = min(STEPS_CAP, max(1, round(STEPS_MEDIAN * math.exp(STEPS_SPREAD * rng.gauss(0, 1)))))
    thoughts = (THINK_MEDIAN_S * math.exp(THINK_SPREAD * rng.gauss(0, 1)) for _ in range(count))
    return Episode(number, tuple(min(THINK_CAP_S, seconds) for seconds in thoughts))


@dataclass(slots=True)
class Tally:
    """The work done in one way, until its time is over."""

    seconds: float
    ends_at: float = field(init=False)
    episodes: float = 0.0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.ends_at = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() >= self.ends_at

    def next(self) -> Episode:
        """The next episode of the workload."""
        return episode(next(self._numbers))

    def step_done(self, of: Episode) -> None:
        """Count a step, if it was done in time."""
        if not self.over:
            self.episodes += 1 / len(of.think_s)

    @property
    def episodes_per_min(self) -> float:
        """Return what was done by the time."""
        return 60 * self.episodes / self.seconds


def with_barrier(envs: DesktopVectorEnv, seconds: float) -> float:
    """Episodes per minute of `step`: all desktops wait for the longest thought and the slowest desktop."""
    tally = Tally(seconds)
    episodes, steps = [tally.next() for _ in range(envs.num_envs)], [0] * envs.num_envs
    envs.reset(options={"task_ids": [TASK] * envs.num_envs}, seed=0)
    while not tally.over:
        thoughts = [one.think_s[step] for one, step in zip(episodes, steps, strict=True)]
        time.sleep(max(thoughts))  # the policy thinks about all of them at once: it is what is measured
        *_, infos = envs.step([one.action(step) for one, step in zip(episodes, steps, strict=True)])
        ended = np.array([bool(terminal) for terminal in infos["terminal"]])
        for i, one in enumerate(episodes):
            tally.step_done(one)
            steps[i] += 1
            _check(bool(ended[i]), one, steps[i])
        if ended.any():
            envs.reset(options={"reset_mask": ended})
            for i in map(int, np.flatnonzero(ended)):
                episodes[i], steps[i] = tally.next(), 0
    return tally.episodes_per_min


def with_send_recv(envs: DesktopVectorEnv, seconds: float) -> float:
    """Return the episodes per minute of `send` and `recv`, where no desktop waits for a slow one."""
    tally = Tally(seconds)
    episodes, steps = [tally.next() for _ in range(envs.num_envs)], [0] * envs.num_envs
    thinking: list[tuple[float, int]] = []  # (when the next action is there, environment)
    envs.async_reset(tasks=[TASK] * envs.num_envs)
    while not tally.over:
        due_in = max(0.0, thinking[0][0] - time.monotonic()) if thinking else None
        if len(thinking) == envs.num_envs:
            time.sleep(due_in or 0.0)
        for ready in envs.recv(min_ready=1, timeout=due_in) if len(thinking) < envs.num_envs else ():
            i = ready.env_id
            if not ready.is_reset:
                tally.step_done(episodes[i])
                steps[i] += 1
                _check(ready.terminated or ready.truncated, episodes[i], steps[i])
                if steps[i] == len(episodes[i].think_s):
                    episodes[i], steps[i] = tally.next(), 0
                    envs.async_reset([i])
                    continue
            heapq.heappush(thinking, (time.monotonic() + episodes[i].think_s[steps[i]], i))
        while thinking and thinking[0][0] <= time.monotonic():
            _, i = heapq.heappop(thinking)
            envs.send([episodes[i].action(steps[i])], [i])
    envs.abandon(range(envs.num_envs))
    return tally.episodes_per_min


async def with_coroutines(client: ClusterClient, desktops: int, seconds: float) -> float:
    """Episodes per minute of one coroutine for each desktop."""
    tally = Tally(seconds)

    async def drive(session: ClientSession) -> None:
        while True:
            one = tally.next()
            await session.reset(TASK, seed=one.number, max_steps=MAX_STEPS)
            for step, thought in enumerate(one.think_s):
                await asyncio.sleep(thought)  # the policy thinks
                result = await session.step(one.action(step))
                tally.step_done(one)
                _check(result.terminal is not None, one, step + 1)

    sessions = [client.session() for _ in range(desktops)]
    tasks = [asyncio.create_task(drive(session)) for session in sessions]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            await task  # it failed: nothing else ends it
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(session.close() for session in sessions))
    return tally.episodes_per_min


def _check(ended: bool, one: Episode, steps: int) -> None:
    if ended != (steps == len(one.think_s)):
        raise ClusterError(f"episode {one.number} of the benchmark ended={ended} after {steps} steps: a desktop broke")
