"""On-policy distillation: a teacher gives the log-probability of each token that the student sampled.

The teacher is another model behind an engine (a bigger one, or an older version), or the student's own newest weights
with privileged information in the prompt: the oracle's next action or the accessibility tree. The loss is a reverse KL
per token; see `dart_train.trainer.losses.teacher_loss`.

Sources are given there. A teacher with privileged information is context distillation (Askell et al., arXiv 2112.00861;
Snell et al., 2209.15189) on the student's own samples.

Invariants:
    - The teacher judges exactly the ids that were sampled. A model with another tokenizer, or with other patches of
      screenshots, is refused before the first episode.
    - The images are those that the student saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from dart_agent.engines.base.engine import Engine, EngineError, ModelEngine, Prompt
from dart_agent.engines.base.engine_kind import Connection
from dart_agent.engines.base.engine_replies import checked
from dart_agent.engines.engine_kinds import ENGINES, kind_of_url
from dart_agent.episodes.trajectory import Step
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.outcomes import Observation
from dart_gym.core.section import Section
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.forks.replay import pixels_of
from dart_train.rollout.settings.rollout_config import EngineConfig
from dart_train.rollout.teachers.model_fit import misfit
from dart_train.rollout.teachers.oracle_words import oracle_words
from dart_train.rollout.teachers.teacher import Student, TeacherAwayError, TeacherError
from dart_train.rollout.teachers.told_prompt import told_prompt

UNAVAILABLE_S = 5.0
"""Seconds that a request waits for an engine that was started here; after that the episode gets no lesson."""


class DistillationOptions(Section):
    """Options of `distillation`."""

    model: str | None = Field(
        None,
        description="Directory of the teacher's model, whose tokenizer must be the student's; null is the student "
        "itself, by its newest weights.",
    )
    url: str | None = Field(
        None,
        description="A running engine with this model: ours (ws://, ws+unix://) or vLLM (http://); null starts one on "
        "this machine's CPU.",
    )
    told: Literal["nothing", "oracle", "tree"] = Field(
        "nothing",
        description="What is added to the prompt of the teacher: the oracle's next action, or the accessibility tree.",
    )
    words: str = Field("Hint: {told}", description="Words of this addition; {told} is the action or the tree.")
    threads: int = Field(1, ge=1, description="Threads of an engine that is started here.")

    @model_validator(mode="after")
    def _knows_more(self) -> DistillationOptions:
        if self.model is None and self.told == "nothing":
            raise ValueError(
                "the student cannot teach itself what it does not know: give the model of another teacher, or tell it "
                "something (told: oracle, or tree)"
            )
        if self.model is None and self.url is not None:
            raise ValueError("url needs model as well: a directory with the tokenizer of the engine's model")
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
        self._engine: Engine = student.engine
        self._pool: EnginePool | None = None
        self._remote: ModelEngine | None = None

    async def start(self) -> None:
        """Connect to the teacher's engine, or start it."""
        options = self._options
        if options.model is None:
            return
        if problem := misfit(options.model, self._student.tokens, self._student.vision):
            raise TeacherError(problem)
        try:
            if options.url is not None:
                kind = kind_of_url(options.url)
                self._remote = kind.connect(Connection(options.url, options.model))
                await self._remote.info()
                self._engine = self._remote
            else:
                settings = ENGINES.get("transformers").parse({"threads": options.threads})
                config = EngineConfig(
                    options=settings.model_dump(mode="json"), replicas=1, unavailable_timeout_s=UNAVAILABLE_S
                )
                directory = self._student.directory / "teacher"
                directory.mkdir(exist_ok=True)
                logs = self._student.logs / "teacher" if self._student.logs is not None else None
                if logs is not None:
                    logs.mkdir(parents=True, exist_ok=True)
                self._pool = EnginePool(config, Weights(options.model, 0), directory=directory, log_dir=logs)
                await self._pool.start()
                self._engine = self._pool
        except EngineError as error:
            await self.close()
            raise TeacherAwayError(f"teacher: {options.url or options.model}: {error}") from error

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
        if not step.response_ids or step.pixels is None or (told and not step.advice):
            return step
        shown = step.pixels.prompt
        images = await asyncio.to_thread(lambda: tuple(map(pixels_of, shown)))
        prompt = Prompt(step.prompt_ids, images)
        if told:
            words = self._options.words.replace("{told}", step.advice)
            prompt = told_prompt(prompt, words, self._student.tokens)
        sampling = replace(self._student.sampling, given_ids=step.response_ids, seed=None)
        judged = checked(await self._engine.generate(prompt, sampling), sampling)
        return replace(step, teacher_logprobs=judged.logprobs)

    async def close(self) -> None:
        """Close the connection to the engine; an engine that was started here is stopped."""
        pool, remote = self._pool, self._remote
        self._pool = self._remote = None
        if pool is not None:
            await pool.close()
        if remote is not None:
            await remote.close()
