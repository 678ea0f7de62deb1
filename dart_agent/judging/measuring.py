"""A judge on recorded episodes: its opinion of each next to the evaluator's score, and how far the two agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.episode_files import RecordError, read_episode, read_image
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.judging.agreement import Agreement, agreement
from dart_agent.judging.judge import Judge, Judgement, Screens, judge_digest

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """One episode.

    Attributes:
        value: what the judge says; None for no judgement.
        error: why it did not answer; "" where it did.
    """

    episode: str
    task_id: str
    score: float
    value: float | None
    said: str = ""
    error: str = ""


async def judge_recorded(
    judge: Judge, episodes: Iterable[Path], on_episode: Callable[[Judged], None] = lambda judged: None
) -> list[Judged]:
    """Judge the episodes that an evaluator scored, some at the same time, in their order.

    Raises:
        RecordError: an episode is damaged.
        JudgeError: the judge does not start.
    """
    scored = [path for path in episodes if read_episode(path, steps=False).score is not None]
    room = asyncio.Semaphore(AT_ONCE)

    async def one(path: Path) -> Judged:
        async with room:
            judged = await _judged(judge, path)
        on_episode(judged)
        return judged

    await judge.start()
    try:
        return list(await asyncio.gather(*map(one, scored)))
    finally:
        await judge.close()


async def _judged(judge: Judge, path: Path) -> Judged:
    episode = await asyncio.to_thread(read_episode, path)
    error = ""
    try:
        said = (await judge.judge(episode, screens_of(path, episode))).checked(len(episode.steps))
    except RecordError:
        raise
    except Exception as failure:  # of somebody's judge: no judgement, and said so
        said, error = Judgement(), f"{type(failure).__name__}: {failure}"
    return Judged(path.name, episode.task_id, float(episode.score or 0.0), said.value, said.said, error)


def screens_of(path: Path, episode: Trajectory) -> Screens:
    """Return the screenshots of an episode that is recorded at `path`, as far as they were kept."""
    names = [step.screenshot or (step.image_hashes[-1] if step.image_hashes else "") for step in episode.steps]
    names += [step.screenshot_after for step in episode.steps[-1:]]
    return Screens([partial(_load, path, name) for name in names if name])


def _load(path: Path, name: str) -> NDArray[np.uint8]:
    found = read_image(path, name)
    if found is None:
        raise RecordError(f"{path} shows the image {name}, which is missing")
    return found.pixels


def calibration(kind: str, options: Mapping[str, Any], judged: Sequence[Judged]) -> dict[str, Any]:
    """Return what `dart-agent judge --json` writes, by which training knows that a judge was measured."""
    found = compared(judged)
    return {
        "judge": kind,
        "digest": judge_digest(kind, options),
        **asdict(found),
        "faults": found.faults,
        "rows": [asdict(one) for one in judged],
    }


def compared(judged: Sequence[Judged]) -> Agreement:
    """Return how far the judge agrees with the evaluators."""
    return agreement([(one.value, one.score) for one in judged])
