"""The interface of teachers, and the description of a student that a teacher gets.

The student plays an episode. In each state the teacher may note something while the desktop exists (`see`: the oracle's
action, the accessibility tree). After an episode without a reward, the teacher gives the lesson of each step (`teach`):
its own answer, or the log-probabilities of the student's answer.

```python
class Patient:
    def __init__(self, student, *, seconds=1.0):
        self._student, self._seconds = student, seconds

    async def start(self): ...
    async def see(self, session, observation):
        return f"wait({self._seconds})"
    async def teach(self, steps, place):
        ids = self._student.tokens.response(f"Action: {steps[place].advice}")
        return dataclasses.replace(steps[place], target_ids=tuple(ids))
    async def close(self): ...
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.episodes.trajectory import Step
from dart_agent.formats.grammar.action_format import ActionFormat
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Observation


class TeacherError(DartGymError):
    """A teacher does not fit the student, or cannot be reached when the run starts."""

    hopeless = True


class TeacherAwayError(TeacherError):
    """A teacher cannot be reached. A run does not begin without it; a run that has begun goes on without it."""


@dataclass(frozen=True, slots=True)
class Student:
    """The policy that a teacher teaches.

    Attributes:
        model_dir: directory of its tokenizer and processor files.
        sampling: its sampling; `max_tokens` is the longest answer.
        engine: serves its newest weights.
        directory: directory for sockets and temporary files, a short path.
        logs: directory of the run's logs; None for no logs.
        grid: its demonstrations click on multiples of this many pixels.
    """

    model_dir: str
    tokens: ModelTokens
    vision: VisionSpec
    action_format: ActionFormat
    sampling: Sampling
    engine: Engine
    directory: Path = Path()
    logs: Path | None = None
    grid: int = 1


class Teacher(Protocol):
    """Teaches one student. Safe for many concurrent calls, within one event loop.

    A teacher that needs accessibility trees has `wants_tree = True`.
    """

    async def start(self) -> None:
        """Get ready. Called before the first episode.

        Raises:
            TeacherAwayError: if it cannot be reached. A run that has begun goes on without it, and calls this again.
            TeacherError: if it cannot teach this student; nothing is played then.
        """

    async def see(self, session: PlayableSession, observation: Observation) -> str:
        """Return a note about a state, before the student's action is carried out; "" for no note.

        The note is recorded as `Step.advice`.
        """

    async def teach(self, steps: Sequence[Step], place: int) -> Step:
        """Return one of the steps of an ended episode with `target_ids` or `teacher_logprobs`, or unchanged.

        Its images are in `step.pixels.prompt`. After an error the step stays unchanged, and the teacher is not asked
        for a while.
        """

    async def close(self) -> None:
        """Release what `start` has opened. Idempotent."""


TeacherFactory = Callable[[Engine, Path], Teacher]
"""Creates the teacher of a run from the engine of its policy and a directory for sockets."""
