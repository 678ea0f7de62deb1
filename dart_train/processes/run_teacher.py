"""The teacher of a run, made around the engines of its policy."""

import dataclasses
from pathlib import Path

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.presets.preset_check import narrowed
from dart_train.config.run_config import RunConfig
from dart_train.rollout.settings.teacher_config import TEACHERS
from dart_train.rollout.teachers.teacher import Student, Teacher, TeacherFactory


def make_teacher(model_dir: str | Path, config: RunConfig, logs: Path | None) -> TeacherFactory | None:
    """Return what makes the teacher that a run names; None where it names none."""
    settings = config.teacher
    if settings.kind is None:
        return None
    kind = TEACHERS.get(settings.kind)

    def make(engine: Engine, directory: Path) -> Teacher:
        return kind(student_of(model_dir, config, engine, directory, logs), **settings.options)

    return make


def student_of(
    model_dir: str | Path, config: RunConfig, engine: Engine, directory: Path = Path(), logs: Path | None = None
) -> Student:
    """Return a run's policy as its teacher knows it."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    least, most = narrowed(vision, config.agent.min_pixels, config.agent.max_pixels)
    chosen = config.rollout.sampling
    sampling = Sampling(max_tokens=chosen.max_tokens, temperature=chosen.temperature).completed(tokens)
    return Student(
        str(model_dir),
        tokens,
        dataclasses.replace(vision, min_pixels=least, max_pixels=most),
        get_format(config.agent.format),
        sampling,
        engine,
        directory,
        logs,
        config.demonstrations.grid,
    )
