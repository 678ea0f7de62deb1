"""Results of benchmarks: named numbers, the machine that they were measured on, the aims that they are held against.

`{"bench": name, "machine": {...}, "keys": {name: number}}` is the JSON; comparisons are ratios within one run.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim for a number: at least, or at most."""

    limit: float
    at_most: bool

    def met(self, value: float) -> bool:
        """Return whether a value is as it should be."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.limit:g}"


@dataclass(slots=True)
class Report:
    """The outcome of one benchmark.

    Attributes:
        bench: its name.
        keys: the numbers.
        aims: what some of them should be.
        notes: how they were measured, and what disturbed.
    """

    bench: str
    keys: dict[str, float]
    aims: dict[str, Aim] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The object that is written."""
        return {
            "bench": self.bench,
            "machine": machine(),
            "keys": {name: rounded(self.keys[name]) for name in self.keys},
        }

    def write(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)

    def print(self, console: Console) -> None:
        """Print the table."""
        console.print(Text(f"{self.bench} on {describe_machine()}", "bold"))
        table = Table(box=None, pad_edge=False)
        for column in ("", "value", "aim"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for name, value in self.keys.items():
            aim = self.aims.get(name)
            style = ""
            if aim is not None:
                style = "green" if aim.met(value) else "red"
            table.add_row(name, Text(f"{rounded(value):g}", style), str(aim or ""))
        console.print(table)
        for note in self.notes:
            console.print(Text(note, "dim"))


def rounded(value: float) -> float:
    """Four significant digits: more would be noise. Pure."""
    return float(f"{value:.4g}")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the others lie, by the nearest rank. Pure."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    """The middle value. Pure."""
    return percentile(values, 0.5)


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system and Python of this machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(total.split()[1]) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def describe_machine() -> str:
    """The same in a few words."""
    found = machine()
    return f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, load {found['load']}"
