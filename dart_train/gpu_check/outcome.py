"""The result of one measurement of a check, as a value that crosses a process boundary. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a measurement ended."""

    OK = "ok"
    WARNING = "warning"
    """Works, but slower or larger than it should be. Does not change the exit status."""
    FAILED = "failed"
    """Wrong numbers, or the part does not run at all: a training run on this machine would go wrong."""
    SKIPPED = "skipped"
    """Cannot be measured on this machine; `found` states the reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table.

    Attributes:
        name: what was measured, such as "attention sdpa bfloat16".
        found: the measured figure with its unit, or the reason of a failure or a skip.
        wanted: what was expected, "" where there is no expectation.
        advice: the next step where the status is not OK.
        values: figures by key, for the JSON file; seconds, bytes, FLOP/s and ratios.
    """

    name: str
    status: Status
    found: str
    wanted: str = ""
    advice: str = ""
    values: Mapping[str, float | str] = field(default_factory=dict)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `asdict` turned into `value`."""
        return cls(**{**value, "status": Status(value["status"])})

    def as_values(self) -> dict[str, Any]:
        """Return a dictionary that JSON can hold."""
        return asdict(self)


def verdict(outcomes: Sequence[Outcome]) -> tuple[bool, str]:
    """Return whether runs on this machine can be trusted, and a sentence that says why or why not."""
    by_status = {status: [item for item in outcomes if item.status is status] for status in Status}
    counts = f"{len(by_status[Status.OK])} ok"
    for status in (Status.WARNING, Status.FAILED, Status.SKIPPED):
        if by_status[status]:
            counts += f", {len(by_status[status])} {status}"
    if by_status[Status.FAILED]:
        names = ", ".join(item.name for item in by_status[Status.FAILED])
        return False, f"This machine is not ready for training: {names} failed ({counts})."
    if not by_status[Status.OK] and not by_status[Status.WARNING]:
        return False, f"Nothing could be measured ({counts})."
    return True, f"Everything that ran agrees ({counts})."
