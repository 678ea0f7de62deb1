"""`RewardConfig`: one judge of a run, by the name under which its values are recorded (section `rewards`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from dart_agent.judging.judge import REWARDS, judge_digest
from dart_gym.core.section import Section, as_mistake, options_of


class RewardConfig(Section):
    """A judge whose values are added to the reward of training; the evaluator's score stays beside it in any case."""

    kind: str = Field(
        description='Who judges: "model" (a model with a rubric), "program", "checkpoints" (the task\'s own), one of '
        "an installed package, or module:Class (docs/guides/rewards.md)."
    )
    options: dict[str, Any] = Field(
        {}, validate_default=True, description="Options of this judge; docs/guides/rewards.md lists those of each."
    )
    weight: float = Field(
        1.0, description="Factor of its values in the reward of training; 0 records them without training on them."
    )
    per: Literal["episode", "step"] = Field(
        "episode", description="Whether it gives one value per episode or one per step."
    )
    calibration: str | None = Field(
        None,
        description="File of `dart-agent judge --json`: how far this judge agrees with evaluators. null warns.",
    )
    timeout_s: float = Field(
        120.0, gt=0, description="Seconds for an episode; after that the score of the evaluator counts alone."
    )

    @field_validator("kind")
    @classmethod
    def _can_be_used(cls, kind: str) -> str:
        with as_mistake():
            REWARDS.get(kind)
        return kind

    @field_validator("options")
    @classmethod
    def _resolve(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "kind" not in info.data:
            return options
        with as_mistake():
            return options_of(REWARDS.get(info.data["kind"]), options)


def judge_warnings(rewards: Mapping[str, RewardConfig]) -> list[str]:
    """Return a sentence for each judge that is trained with although it is not calibrated or was found wanting."""
    return [
        f"rewards.{name}: this judge is trained with, and {fault}"
        for name, one in rewards.items()
        if one.weight
        for fault in _faults(one)
    ]


def _faults(config: RewardConfig) -> list[str]:
    if config.kind == "checkpoints":
        return []  # these are values of the evaluator itself
    if config.calibration is None:
        return [
            "nobody knows how far it agrees with evaluators: measure it with `dart-agent judge --json FILE`, and name "
            "that file as its calibration"
        ]
    try:
        found = json.loads(Path(config.calibration).read_text(encoding="utf-8"))
        digest, faults = str(found["digest"]), [str(fault) for fault in found["faults"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"its calibration {config.calibration} cannot be read ({type(error).__name__}: {error})"]
    if digest != judge_digest(config.kind, config.options):
        return [f"its calibration {config.calibration} is of another judge, or of other options: measure it again"]
    return faults
