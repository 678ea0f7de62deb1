"""The engine of a teacher that is a model: one that runs elsewhere, or is started here."""

from __future__ import annotations

import asyncio

from pydantic import Field, model_validator

from dart_agent.engines.base.engine import Engine, EngineError, Generation, ModelEngine, Prompt, Sampling
from dart_agent.engines.base.engine_kind import Connection
from dart_agent.engines.base.engine_replies import checked
from dart_agent.engines.engine_kinds import ENGINES, kind_of_url
from dart_agent.episodes.trajectory import Step
from dart_gym.core.section import Section
from dart_train.core.demo_models import model_place
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.forks.replay import pixels_of
from dart_train.rollout.settings.rollout_config import EngineConfig
from dart_train.rollout.teachers.model_fit import misfit
from dart_train.rollout.teachers.teacher import Student, TeacherAwayError, TeacherError

UNAVAILABLE_S = 5.0
"""Seconds that a request waits for an engine that was started here; after that the episode gets no lesson."""


class ModelTeacherOptions(Section):
    """Options that name the model of a teacher."""

    model: str | None = Field(
        None,
        description="Directory of the teacher's model, or the name of a shipped one; its tokenizer must be the "
        "student's.",
    )
    url: str | None = Field(
        None,
        description="A running engine with this model: ours (ws://, ws+unix://) or vLLM (http://); null starts one on "
        "this machine's CPU.",
    )
    threads: int = Field(1, ge=1, description="Threads of an engine that is started here.")

    @model_validator(mode="after")
    def _has_tokenizer(self) -> ModelTeacherOptions:
        if self.model is None and self.url is not None:
            raise ValueError("url needs model as well: a directory with the tokenizer of the engine's model")
        return self


class ModelTeacher:
    """The engine of a teacher's model, or that of the student where no model is named.

    Invariants:
        - A model with another tokenizer, or with other patches of screenshots, is refused before the first episode.
        - The images are those that the student saw.
    """

    def __init__(self, student: Student, options: ModelTeacherOptions) -> None:
        self._student = student
        self._options = options
        self._engine: Engine = student.engine
        self._pool: EnginePool | None = None
        self._remote: ModelEngine | None = None

    async def start(self) -> None:
        """Connect to the teacher's engine, or start it. Raises `TeacherError`, `TeacherAwayError`."""
        options = self._options
        if options.model is None:
            return
        model = str(model_place(options.model))
        if problem := misfit(model, self._student.tokens, self._student.vision):
            raise TeacherError(problem)
        try:
            if options.url is not None:
                kind = kind_of_url(options.url)
                self._remote = kind.connect(Connection(options.url, model))
                await self._remote.info()
                self._engine = self._remote
            else:
                self._pool = self._engine = self._new_pool(model)
                await self._pool.start()
        except EngineError as error:
            await self.close()
            raise TeacherAwayError(f"teacher: {options.url or options.model}: {error}") from error

    def _new_pool(self, model: str) -> EnginePool:
        settings = ENGINES.get("transformers").parse({"threads": self._options.threads})
        config = EngineConfig(options=settings.model_dump(mode="json"), replicas=1, unavailable_timeout_s=UNAVAILABLE_S)
        directory = self._student.directory / "teacher"
        directory.mkdir(exist_ok=True)
        logs = self._student.logs / "teacher" if self._student.logs is not None else None
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        return EnginePool(config, Weights(model, 0), directory=directory, log_dir=logs)

    async def prompt(self, step: Step) -> Prompt | None:
        """Return what the student was asked in this step; None of a step that no engine answered."""
        if not step.response_ids or step.pixels is None:
            return None
        shown = step.pixels.prompt
        images = await asyncio.to_thread(lambda: tuple(map(pixels_of, shown)))
        return Prompt(step.prompt_ids, images)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Return the checked answer of the engine. Raises `EngineError`."""
        return checked(await self._engine.generate(prompt, sampling), sampling)

    async def close(self) -> None:
        """Close the connection to the engine; an engine that was started here is stopped."""
        pool, remote = self._pool, self._remote
        self._pool = self._remote = None
        if pool is not None:
            await pool.close()
        if remote is not None:
            await remote.close()
