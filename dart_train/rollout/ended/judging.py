"""Judging: values of judges are recorded with an episode, beside the score of its evaluator.

The reward of training is the evaluator's score plus the weighted values of the judges:

    R = score + sum_k weight_k * value_k              over judges per episode
    r_t = sum_k weight_k * value_{k,t}                over judges per step

Invariants:
    - The score is never changed, and an episode without a score is not judged.
    - A judge that fails, hangs or answers nonsense adds nothing, and is counted. The group is trained on without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.judging.agreement import SUCCESS
from dart_agent.judging.judge import Judge, Judgement, Screens
from dart_train.core.judge_counts import judge_faults
from dart_train.rollout.ended.ended_episodes import EndedEpisodes, Record
from dart_train.rollout.forks.replay import pixels_of
from dart_train.rollout.settings.reward_config import RewardConfig

_log = logging.getLogger(__name__)


class Judging:
    """The judges of a rollout service, by name. There may be none.

    Args:
        judges: each judge with its settings.
        record: takes the judged episodes.

    Attributes:
        counts: counts of episodes by judge: "judged"; "yes", those that it called a success; "wrong", those of "yes"
            that the evaluator calls a failure; "nonsense", unusable answers; "silent", no answer.
    """

    def __init__(self, judges: Mapping[str, tuple[RewardConfig, Judge]], record: Record) -> None:
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in judges}
        self._judges = dict(judges)
        self._record = record
        self._ended = EndedEpisodes(self._add, record)
        self._warned: set[tuple[str, str]] = set()

    @property
    def enabled(self) -> bool:
        """Return whether there is a judge."""
        return bool(self._judges)

    @property
    def waiting(self) -> int:
        """Episodes that were handed in and are not handed on yet."""
        return self._ended.waiting

    @property
    def full(self) -> bool:
        """Return whether workers should wait before they begin new episodes."""
        return self._ended.full

    async def start(self) -> None:
        """Prepare the judges. Raises `JudgeError`."""
        for _, judge in self._judges.values():
            await judge.start()

    def hand_in(self, trajectory: Trajectory, expected: int) -> None:
        """Judge an episode that has ended, if it is to be judged, and hand it on."""
        if self._judges and trajectory.trainable:
            self._ended.hand_in(trajectory, expected)
        else:
            self._record(trajectory, expected)

    async def settle(self, limit_s: float) -> None:
        """Wait for the episodes in work; hand on those that take longer than the limit without judgements."""
        await self._ended.settle(limit_s)

    async def close(self) -> None:
        """Close the judges. Call `settle` before."""
        for _, judge in self._judges.values():
            await judge.close()

    def figures(self) -> dict[str, Any]:
        """Return the judges' part of a metrics line; empty without a judge."""
        return {"judges": {name: dict(counts) for name, counts in self.counts.items()}} if self._judges else {}

    async def _add(self, standing: list[Trajectory]) -> None:
        episode = standing[0]
        screens = screens_of(episode)
        said = await asyncio.gather(*(self._ask(name, episode, screens) for name in self._judges))
        self._warn()
        settings = {name: config for name, (config, _) in self._judges.items()}
        standing[0] = rewarded(episode, dict(zip(self._judges, said, strict=True)), settings)

    async def _ask(self, name: str, episode: Trajectory, screens: Screens) -> Judgement:
        config, judge = self._judges[name]
        counts = self.counts[name]
        try:
            async with asyncio.timeout(config.timeout_s):
                said = (await judge.judge(episode, screens)).checked(len(episode.steps))
        except Exception as error:  # a program, an engine or a plug-in failed: training continues without it
            counts["silent"] += 1
            if counts["silent"] == 1:
                _log.warning("the judge %s did not judge an episode: %s: %s", name, type(error).__name__, error)
            return Judgement()
        missing = said.value is None if config.per == "episode" else not said.steps
        counts["nonsense" if missing else "judged"] += 1
        if missing and counts["nonsense"] == 1:
            _log.warning("the judge %s answered what is no judgement: %.200r", name, said.said)
        if said.value is not None and said.value > SUCCESS:
            counts["yes"] += 1
            counts["wrong"] += not episode.score
        return said

    def _warn(self) -> None:
        """Log each fault that the answers of a judge show, once."""
        for name, counts in self.counts.items():
            for kind, fault in judge_faults(counts).items():
                if (name, kind) not in self._warned:
                    self._warned.add((name, kind))
                    _log.warning("the judge %s: %s", name, fault)


def rewarded(episode: Trajectory, said: Mapping[str, Judgement], settings: Mapping[str, RewardConfig]) -> Trajectory:
    """Return an episode with the judgements and the rewards of training; see the formula above. Pure."""
    reward = episode.score or 0.0
    values: dict[str, float] = {}
    steps: list[Step] = list(episode.steps)
    for name, judgement in said.items():
        config = settings[name]
        if config.per == "episode" and judgement.value is not None:
            values[name] = judgement.value
            reward += config.weight * judgement.value
        if config.per == "step" and judgement.steps:
            for place, value in enumerate(judgement.steps):
                own = steps[place]
                total = (own.reward or 0.0) + config.weight * value
                steps[place] = replace(own, rewards={**own.rewards, name: value}, reward=total)
    return replace(episode, rewards=values, reward=reward if values else None, steps=tuple(steps))


def screens_of(episode: Trajectory) -> Screens:
    """Return the screenshots of an episode that is still in memory."""
    shown = [step.pixels.prompt[-1] for step in episode.steps if step.pixels is not None and step.pixels.prompt]
    last = episode.steps[-1].pixels if episode.steps else None
    after = [last.after] if last is not None and last.after is not None else []
    return Screens([partial(pixels_of, image) for image in (*shown, *after)])
