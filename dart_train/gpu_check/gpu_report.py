"""The table and the JSON file of `dart-train check-gpu`."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from dart_train.gpu_check.outcome import Outcome, Status, verdict

STYLE = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "bold red", Status.SKIPPED: "dim"}


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table that a person reads: one row per outcome, with the advice below what was found."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("found")
    for item in outcomes:
        found = Text(item.found)
        if item.wanted:
            found.append(f" (expected: {item.wanted})", "dim")
        if item.advice:
            found.append(f"\n-> {item.advice}", "yellow")
        table.add_row(Text(item.status.value, STYLE[item.status]), Text(item.name), found)
    return table


def as_values(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Return the JSON file's content: verdict, machine, and each outcome with its figures."""
    ready, sentence = verdict(outcomes)
    return {
        "ready": ready,
        "verdict": sentence,
        "machine": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "outcomes": [item.as_values() for item in outcomes],
    }
