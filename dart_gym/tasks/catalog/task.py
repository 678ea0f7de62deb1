"""A task: an OSWorld JSON, typed. Unknown keys are kept, so that the round trip is exact."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from dart_gym.desktops.base.desktop import DesktopSpec


@dataclass(frozen=True, slots=True)
class Task:
    """One task of one suite.

    Attributes:
        id: "<suite>/<name>", unique over all suites; the JSON's own `id` is the part after the slash.
        instruction: what is asked; "" where the scenario finds it out per seed (MiniWoB++).
        desktop: what kind of desktop it runs on.
        max_steps: default step limit.
        raw: the task's JSON as read, OSWorld's keys (`config`, `evaluator`, ...).
        solution: the recorded actions of a perfect user (`dart_gym.tasks.osworld.oracle_script`), where they do not
            stand in the JSON. No part of the definition, and so not of the hash.
    """

    id: str
    instruction: str
    desktop: DesktopSpec
    max_steps: int = 15
    raw: dict[str, Any] = field(default_factory=dict, compare=False)
    solution: tuple[dict[str, Any], ...] = field(default=(), compare=False)

    @property
    def suite(self) -> str:
        """Name of the suite: the part of the id before the first slash."""
        return self.id.split("/", 1)[0]

    @property
    def config(self) -> list[dict[str, Any]]:
        """OSWorld set-up steps; [] where the JSON has none."""
        return self.raw.get("config") or []

    @property
    def evaluator(self) -> dict[str, Any]:
        """OSWorld evaluator; {} where the JSON has none."""
        return self.raw.get("evaluator") or {}

    @property
    def deterministic(self) -> bool:
        """Return whether equal seeds and actions show equal screens; a task says no with {"deterministic": false}."""
        return (self.raw.get("dart") or {}).get("deterministic", True) is not False

    @property
    def hash(self) -> str:
        """Content hash of the definition (16 hex digits): equal hashes mean comparable scores."""
        text = json.dumps([self.id, self.instruction, self.raw], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
