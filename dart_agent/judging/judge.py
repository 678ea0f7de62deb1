"""The one interface of judges: an episode that has ended, in; a value beside its evaluator's score, out.

A judge is a class that is called with its options as keyword arguments. A name stands for it: built in, of an installed
package (entry points of "dart_gui.rewards"), or `module:Class`. Where the class has an attribute `Options`, a section,
options are checked by it.

```python
class Short:
    def __init__(self, *, most=10):
        self._most = most

    async def start(self): ...
    async def judge(self, episode, screens):
        return Judgement(max(0.0, 1 - len(episode.steps) / self._most))
    async def close(self): ...
```

Invariants:
    - A judge never changes an episode's score: what it says is recorded under its own name.
    - An answer that is no judgement has the value None. It is never taken for a failure or a success.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.errors import ConfigurationError, DartGymError
from dart_gym.core.section import options_of
from dart_gym.utils.plugins import Registry, has


class JudgeError(DartGymError):
    """A judge cannot be started, or did not answer."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's opinion of an episode.

    Attributes:
        value: of the episode, in [0, 1]; None for an answer that is no judgement, or where it judges steps only.
        steps: of each step; empty where it judges the episode only.
        said: its own words, for people.
    """

    value: float | None = None
    steps: tuple[float, ...] = ()
    said: str = ""

    def checked(self, steps: int) -> Judgement:
        """Return it with what is no number of [0, 1], or not one for each step, as no judgement."""
        value = self.value
        if value is not None and not (math.isfinite(value) and 0.0 <= value <= 1.0):
            value = None
        each = self.steps if len(self.steps) == steps and all(map(math.isfinite, self.steps)) else ()
        return Judgement(value, each, self.said)


class Screens(Sequence[NDArray[np.uint8]]):
    """The screenshot before each step of an episode, and the last one where it was kept; each is loaded as it is asked.

    Args:
        loads: a function for each.
    """

    def __init__(self, loads: Sequence[Callable[[], NDArray[np.uint8]]]) -> None:
        self._loads = tuple(loads)

    def __len__(self) -> int:
        return len(self._loads)

    def __getitem__(self, place: Any) -> Any:
        """Return one, (H, W, 3) uint8."""
        if isinstance(place, slice):
            return Screens(self._loads[place])
        return self._loads[place]()


class Judge(Protocol):
    """Judges ended episodes. Safe for many concurrent calls, within one event loop."""

    async def start(self) -> None:
        """Get ready. Raises `JudgeError`."""

    async def judge(self, episode: Trajectory, screens: Screens) -> Judgement:
        """Judge an episode. An error is no judgement, and is counted as such."""

    async def close(self) -> None:
        """Let go of what `start` has opened. Idempotent."""


REWARDS: Registry[Callable[..., Judge]] = Registry(
    "reward",
    "dart_gui.rewards",
    {
        "checkpoints": "dart_agent.judging.checkpoints:Checkpoints",
        "model": "dart_agent.judging.model_judge:ModelJudge",
        "program": "dart_agent.judging.program_judge:ProgramJudge",
    },
    (has(start=(), judge=("episode", "screens"), close=()),),
)


def make_judge(kind: str, options: Mapping[str, Any]) -> Judge:
    """Return a judge by its name and options. Raises `ConfigurationError`."""
    try:
        judge = REWARDS.get(kind)
        return judge(**options_of(judge, options))
    except TypeError as error:
        raise ConfigurationError(f"the judge {kind} does not take these options: {error}") from error


def judge_digest(kind: str, options: Mapping[str, Any]) -> str:
    """Return what tells a judge from one of other options: 16 hex digits."""
    text = json.dumps([kind, options_of(REWARDS.get(kind), options)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
