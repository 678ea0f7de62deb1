"""The one interface of teachers, and what a teacher is told of its student.

An episode is played by the student. In each state the teacher may note something while the desktop is there (`see`:
what an oracle would do, the accessibility tree). Once the episode has ended without a reward, it says for each step
what is to be learned (`teach`): the answer that it would have given, or how likely it finds the student's.

```python
class Patient:
    def __init__(self, student, *, seconds=1.0):
        self._student, self._seconds = student, seconds

    async def start(self): ...
    async def see(self, session, observation):
        return f"wait({self._seconds})"
    async def teach(self, step):
        ids = self._student.tokens.response(f"Action: {step.advice}")
        return dataclasses.replace(step, target_ids=tuple(ids))
    async def close(self): ...
```
"""

from __future__ import annotations

from collections.abc import Callable
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
    """A teacher cannot be reached. A run does not begin without it, and one that had begun goes on."""


@dataclass(frozen=True, slots=True)
class Student:
    """What a teacher may know of the policy that it teaches.

    Attributes:
        model_dir: of its tokenizer and processor files.
        sampling: how it samples; `max_tokens` is the longest answer.
        engine: serves its newest weights.
        directory: for sockets and temporary files, a short path.
        logs: directory of the run's logs; None for none.
    """

    model_dir: str
    tokens: ModelTokens
    vision: VisionSpec
    action_format: ActionFormat
    sampling: Sampling
    engine: Engine
    directory: Path = Path()
    logs: Path | None = None


class Teacher(Protocol):
    """Teaches one student. Safe for many concurrent calls, within one event loop.

    A teacher that needs accessibility trees has `wants_tree = True`.
    """

    async def start(self) -> None:
        """Get ready; called before the first episode.

        Raises:
            TeacherAwayError: if it cannot be reached; a run that had begun is played without it, and calls again.
            TeacherError: if it cannot teach this student; then nothing is played.
        """

    async def see(self, session: PlayableSession, observation: Observation) -> str:
        """Return what is to be noted of a state, before the student's action is carried out; "" for nothing.

        It is recorded as `Step.advice`.
        """

    async def teach(self, step: Step) -> Step:
        """Return a step of an ended episode with `target_ids` or `teacher_logprobs`, or as it is.

        Its images are in `step.pixels.prompt`. An error leaves the step as it is; after one the teacher is left alone
        for a while.
        """

    async def close(self) -> None:
        """Let go of what `start` has opened. Idempotent."""


TeacherFactory = Callable[[Engine, Path], Teacher]
"""Makes the teacher of a run around the engine of its policy, with a directory for sockets."""
