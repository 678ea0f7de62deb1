"""`TeacherConfig`, the section `teacher` of a run, and the teachers by name.

A teacher is a class that is called with a `Student` (`dart_train.rollout.teachers.teacher`) and the options of the
configuration as keyword arguments. `teacher.kind` names it: built in, of an installed package (entry points of
"dart_gui.teachers"), or `module:Class`. If the class has an attribute `Options`, a section, the options are checked
before anything starts.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from dart_gym.core.section import Section, as_mistake, options_of
from dart_gym.utils.plugins import Registry, has

TEACHERS: Registry[Any] = Registry(
    "teacher",
    "dart_gui.teachers",
    {
        "dagger": "dart_train.rollout.teachers.dagger:Dagger",
        "distillation": "dart_train.rollout.teachers.distillation:Distillation",
    },
    (has(start=(), see=("session", "observation"), teach=("steps", "place"), close=()),),
)


class TeacherConfig(Section):
    """A teacher, from which the policy learns in states that it reached itself (docs/guides/teachers.md)."""

    kind: str | None = Field(
        None,
        description='Who teaches: "dagger" (the task\'s oracle, or a better model, answers in each state), '
        '"distillation" (a model says how likely the policy\'s own answers are), a teacher of an installed package, or '
        "module:Class; null for none.",
    )
    options: dict[str, Any] = Field(
        {}, validate_default=True, description="Options of this teacher; docs/guides/teachers.md lists those of each."
    )
    when: Literal["failed", "always"] = Field(
        "failed", description="Groups that are taught: those in which no rollout got any reward, or all."
    )
    coef: float = Field(1.0, gt=0, description="Weight of what the teacher says in the loss.")
    rehearsed_rows: int = Field(
        0,
        ge=0,
        description="Steps with an earlier answer that every lease is trained with as well, of every task alike: whole "
        'failures of the run, until they have as many; for "dagger", whose method is to gather all answers.',
    )
    timeout_s: float = Field(
        60.0, gt=0, description="Seconds for all answers about an episode; it is trained on without the rest."
    )

    @field_validator("kind")
    @classmethod
    def _can_be_used(cls, kind: str | None) -> str | None:
        if kind is not None:
            with as_mistake():
                TEACHERS.get(kind)
        return kind

    @field_validator("options")
    @classmethod
    def _resolve(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Return all options of the kind, including those that have their default."""
        kind = info.data.get("kind")
        if kind is None:
            if options and "kind" in info.data:
                raise ValueError("options are of a teacher, and teacher.kind names none: set it, or leave them out")
            return options
        with as_mistake():
            return options_of(TEACHERS.get(kind), options)
