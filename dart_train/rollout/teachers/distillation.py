"""On-policy distillation: a teacher says how likely it finds each token that the student sampled in its own states.

The teacher is another model behind an engine (a bigger one, an older version), or the student's own newest weights
with something in the prompt that the student does not see: what the oracle would do, or the accessibility tree. What
comes of the log-probabilities says `dart_train.trainer.losses.teacher_loss`: a reverse KL per token.

Sources as there; the teacher with privileged information is context distillation (Askell et al., arXiv 2112.00861;
Snell et al., 2209.15189) on the student's own samples.

Invariants:
    - The teacher judges the very ids that were sampled: another tokenizer, or another cut of screenshots into patches,
      is refused before the first episode.
    - The images are those that the student saw.
"""

from __future__ import annotations

import asyncio
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
"""Seconds that a request waits for an engine that was started here; the episode is trained on without it then."""


class DistillationOptions(Section):
    """Options of `distillation`."""

    model: str | None = Field(
        None,
        description="Directory of the teacher's model, whose tokenizer must be the student's; null is the student "
        "itself, by its newest weights.",
    )
    url: str | None = Field(
        None,
        description="A running engine that serves it: ours (ws://, ws+unix://) or vLLM (http://); null starts one on "
        "this machine's CPU.",
    )
    told: Literal["nothing", "oracle", "tree"] = Field(
        "nothing",
        description="What the teacher's prompt holds besides: the oracle's next action, or the accessibility tree.",
    )
    words: str = Field("Hint: {told}", description="How it is told; {told} stands for the action or the tree.")
    threads: int = Field(1, ge=1, description="Threads of an engine that is started here.")

    @model_validator(mode="after")
    def _knows_more(self) -> DistillationOptions:
        if self.model is None and self.told == "nothing":
            raise ValueError(
                "the student cannot teach itself what it does not know: give the model of another teacher, or tell it "
                "something (told: oracle, or tree)"
            )
        if self.model is None and self.url is not None:
            raise ValueError("url needs model as well: the directory whose tokenizer the engine's model has")
        if "{told}" not in self.words:
            raise ValueError('words must hold {told}, such as "Hint: {told}"')
        return self


class Distillation:
    """A `Teacher` that judges the student's tokens by an engine."""

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
        """Return what the teacher will be told."""
        if self._options.told == "tree":
            return observation.accessibility_tree or ""
        if self._options.told == "oracle":
            return await oracle_words(self._student, session, observation)
        return ""

    async def teach(self, step: Step) -> Step:
        """Return the step with the teacher's log-probabilities of its tokens."""
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
        """Let go of the engine; one that was started here ends."""
        pool, remote = self._pool, self._remote
        self._pool = self._remote = None
        if pool is not None:
            await pool.close()
        if remote is not None:
            await remote.close()
