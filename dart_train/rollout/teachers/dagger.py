"""DAgger: in each state that the student reaches, the oracle's answer is the training target.

The states are the student's own, so it learns how to recover from its own mistakes, which demonstrations never show.
Source: Ross, Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (arXiv 1011.0686), with the student playing always (beta_i = 0 for every iteration). The loss is the mean
cross-entropy of the answers (`dart_train.trainer.losses.teacher_loss`).

The oracle must look at the state. One that follows a recorded script only knows its own path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from dart_agent.episodes.trajectory import Step
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.actions import action_from_dict, action_to_dict
from dart_gym.core.outcomes import Observation
from dart_gym.core.section import Section
from dart_train.rollout.teachers.oracle_words import oracle_words
from dart_train.rollout.teachers.teacher import Student


class DaggerOptions(Section):
    """Options of `dagger`. Clicks are answered as they were demonstrated (`demonstrations.grid`)."""

    until: Literal["mistake", "end"] = Field(
        "mistake",
        description="States of an episode that are taught: up to the student's first action that is not the oracle's, "
        "or all. Behind a mistake the oracle mends, which a student that hardly sees the mistake takes for "
        "going on.",
    )
    near: int = Field(
        24, ge=0, description="Pixels of the screen by which a click may be beside the oracle's and still be the same."
    )


class Dagger:
    """A `Teacher` whose answers are the oracle's."""

    Options = DaggerOptions

    def __init__(self, student: Student, *, until: str = "mistake", near: int = 24) -> None:
        self._student = student
        self._until = until
        self._near = near

    async def start(self) -> None:
        """Do nothing: there is nothing to open."""

    async def see(self, session: PlayableSession, observation: Observation) -> str:
        """Return the oracle's action in the student's words."""
        return await oracle_words(self._student, session, observation)

    async def teach(self, steps: Sequence[Step], place: int) -> Step:
        """Return the step with the oracle's answer as its target."""
        step = steps[place]
        if not step.advice or (self._until == "mistake" and any(map(self._mistaken, steps[:place]))):
            return step
        return replace(step, target_ids=tuple(self._student.tokens.response(step.advice)))

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def _mistaken(self, step: Step) -> bool:
        """Return whether the student did something else than the oracle would have, or did what nobody judged."""
        width, height = step.screen
        space = self._student.vision.space(height, width)
        wanted = self._student.action_format.parse(step.advice, space).actions
        done = [action_from_dict(action) for action in step.actions]
        return len(wanted) != len(done) or not all(
            _same(action_to_dict(one), action_to_dict(other), self._near)
            for one, other in zip(wanted, done, strict=True)
        )


def _same(one: Mapping[str, Any], other: Mapping[str, Any], near: int) -> bool:
    """Return whether two actions are equal, but for a place that may be beside the other."""
    places = [(one.get(name), other.get(name)) for name in ("x", "y")]
    close = all(a == b or (a is not None and b is not None and abs(a - b) <= near) for a, b in places)
    return close and {**one, "x": 0, "y": 0} == {**other, "x": 0, "y": 0}
