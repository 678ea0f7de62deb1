"""On-policy distillation: a teacher gives the log-probability of each token that the student sampled.

The teacher is another model behind an engine (a bigger one, or an older version), or the student's own newest weights
with privileged information in the prompt: the oracle's next action or the accessibility tree. The loss is a reverse KL
per token; see `dart_train.trainer.losses.teacher_loss`.

Sources are given there. A teacher with privileged information is context distillation (Askell et al., arXiv 2112.00861;
Snell et al., 2209.15189) on the student's own samples.

Invariants:
    - The teacher judges exactly the ids that were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from dart_agent.episodes.trajectory import Step
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.outcomes import Observation
from dart_train.rollout.teachers.model_teacher import ModelTeacher, ModelTeacherOptions
from dart_train.rollout.teachers.oracle_words import oracle_words
from dart_train.rollout.teachers.teacher import Student
from dart_train.rollout.teachers.told_prompt import told_prompt


class DistillationOptions(ModelTeacherOptions):
    """Options of `distillation`. Without `model` the student is its own teacher, by its newest weights."""

    told: Literal["nothing", "oracle", "tree"] = Field(
        "nothing",
        description="What is added to the prompt of the teacher: the oracle's next action, or the accessibility tree.",
    )
    words: str = Field("Hint: {told}", description="Words of this addition; {told} is the action or the tree.")

    @model_validator(mode="after")
    def _knows_more(self) -> DistillationOptions:
        if self.model is None and self.told == "nothing":
            raise ValueError(
                "the student cannot teach itself what it does not know: give the model of another teacher, or tell it "
                "something (told: oracle, or tree)"
            )
        if "{told}" not in self.words:
            raise ValueError('words must hold {told}, such as "Hint: {told}"')
        return self


class Distillation:
    """A `Teacher` that gives log-probabilities of the student's tokens, from an engine."""

    Options = DistillationOptions

    def __init__(self, student: Student, **options: object) -> None:
        self._student = student
        self._options = DistillationOptions.parse(options)
        self.wants_tree = self._options.told == "tree"
        self._model = ModelTeacher(student, self._options)

    async def start(self) -> None:
        """Connect to the teacher's engine, or start it."""
        await self._model.start()

    async def see(self, session: PlayableSession, observation: Observation) -> str:
        """Return what is added to the teacher's prompt."""
        if self._options.told == "tree":
            return observation.accessibility_tree or ""
        if self._options.told == "oracle":
            return await oracle_words(self._student, session, observation)
        return ""

    async def teach(self, steps: Sequence[Step], place: int) -> Step:
        """Return the step with the teacher's log-probabilities of its tokens."""
        step = steps[place]
        told = self._options.told != "nothing"
        if told and not step.advice:
            return step
        prompt = await self._model.prompt(step)
        if prompt is None:
            return step
        if told:
            words = self._options.words.replace("{told}", step.advice)
            prompt = told_prompt(prompt, words, self._student.tokens)
        sampling = replace(self._student.sampling, given_ids=step.response_ids, seed=None)
        judged = await self._model.generate(prompt, sampling)
        return replace(step, teacher_logprobs=judged.logprobs)

    async def close(self) -> None:
        """Close the connection to the engine; an engine that was started here is stopped."""
        await self._model.close()
