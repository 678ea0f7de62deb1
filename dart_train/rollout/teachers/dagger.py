"""DAgger: in each state that the student reaches, an expert's answer is the training target.

The expert is the task's oracle, or a better model behind an engine, which is asked what the student was asked. The
states are the student's own, so it learns how to recover from its own mistakes, which demonstrations never show.
Source: Ross, Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (arXiv 1011.0686), with the student playing always (beta_i = 0 for every iteration). The loss is the mean
cross-entropy of the answers (`dart_train.trainer.losses.teacher_loss`).

An oracle must look at the state. One that follows a recorded script only knows its own path.

Invariants:
    - A model is asked about a state once, and, with `until: mistake`, only if the student had made no mistake before.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import Field

from dart_agent.episodes.trajectory import Step
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.actions import action_from_dict, action_to_dict
from dart_gym.core.outcomes import Observation
from dart_train.rollout.teachers.model_teacher import ModelTeacher, ModelTeacherOptions
from dart_train.rollout.teachers.oracle_words import oracle_words
from dart_train.rollout.teachers.teacher import Student


class DaggerOptions(ModelTeacherOptions):
    """Options of `dagger`. Without `model` the task's oracle answers, with clicks as in `demonstrations.grid`."""

    until: Literal["mistake", "end"] = Field(
        "mistake",
        description="States of an episode that are taught: up to the student's first action that is not the expert's, "
        "or all. Behind a mistake an oracle mends, which a student that hardly sees the mistake takes for "
        "going on.",
    )
    near: int = Field(
        24, ge=0, description="Pixels of the screen by which a click may be beside the expert's and still be the same."
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """An expert's answer to one step.

    Attributes:
        ids: tokens of the answer; () if the expert has none, or none that the student's format can read.
        mistaken: whether the student did something else, or did what nobody judged.
    """

    ids: tuple[int, ...]
    mistaken: bool


@dataclass(slots=True)
class _Asked:
    """What was asked about an episode that is being taught; `left` counts its steps that are not taught yet."""

    steps: Sequence[Step]
    left: int
    answers: dict[int, asyncio.Task[_Answer]] = field(default_factory=dict)  # by place


class Dagger:
    """A `Teacher` whose answers are those of an expert."""

    Options = DaggerOptions

    def __init__(self, student: Student, **options: object) -> None:
        self._student = student
        self._options = DaggerOptions.parse(options)
        self._model = ModelTeacher(student, self._options) if self._options.model is not None else None
        self._taught_now: dict[int, _Asked] = {}  # by identity of an episode's steps

    async def start(self) -> None:
        """Connect to the engine of the expert, or start it, if it is a model."""
        if self._model is not None:
            await self._model.start()

    async def see(self, session: PlayableSession, observation: Observation) -> str:
        """Return the oracle's action in the student's words; "" if a model is asked later."""
        return "" if self._model is not None else await oracle_words(self._student, session, observation)

    async def teach(self, steps: Sequence[Step], place: int) -> Step:
        """Return the step with the expert's answer as its target."""
        asked = self._taught_now.setdefault(id(steps), _Asked(steps, len(steps)))
        try:
            before = range(place) if self._options.until == "mistake" else ()
            for earlier in before:
                if (await self._answer(asked, earlier)).mistaken:
                    return steps[place]
            answer = await self._answer(asked, place)
            return replace(steps[place], target_ids=answer.ids) if answer.ids else steps[place]
        finally:
            asked.left -= 1
            if not asked.left:
                self._taught_now.pop(id(steps), None)

    async def close(self) -> None:
        """Close the connection to the engine; an engine that was started here is stopped."""
        if self._model is not None:
            await self._model.close()

    async def _answer(self, asked: _Asked, place: int) -> _Answer:
        """Return the answer to a step; the steps behind it wait for the same one."""
        if place not in asked.answers:
            asked.answers[place] = asyncio.ensure_future(self._ask(asked.steps[place]))
        return await asked.answers[place]

    async def _ask(self, step: Step) -> _Answer:
        if self._model is not None:
            words, ids = await self._ask_model(self._model, step)
        else:
            words, ids = step.advice, tuple(self._student.tokens.response(step.advice))
        width, height = step.screen
        read = self._student.action_format.parse(words, self._student.vision.space(height, width))
        wanted = () if read.errors else read.actions
        done = [action_from_dict(action) for action in step.actions]
        mistaken = (
            not wanted
            or len(wanted) != len(done)
            or not all(
                _same(action_to_dict(one), action_to_dict(other), self._options.near)
                for one, other in zip(wanted, done, strict=True)
            )
        )
        return _Answer(ids if wanted else (), mistaken)

    async def _ask_model(self, model: ModelTeacher, step: Step) -> tuple[str, tuple[int, ...]]:
        """Return the likeliest answer of the model, as text and as tokens; ("", ()) if it came to no end."""
        prompt = await model.prompt(step)
        if prompt is None:
            return "", ()
        said = await model.generate(prompt, replace(self._student.sampling, temperature=0.0, seed=None))
        return (said.text, said.response_ids) if said.finish_reason == "stop" else ("", ())


def _same(one: Mapping[str, Any], other: Mapping[str, Any], near: int) -> bool:
    """Return whether two actions are equal, but for a place that may be beside the other."""
    places = [(one.get(name), other.get(name)) for name in ("x", "y")]
    close = all(a == b or (a is not None and b is not None and abs(a - b) <= near) for a, b in places)
    return close and {**one, "x": 0, "y": 0} == {**other, "x": 0, "y": 0}
