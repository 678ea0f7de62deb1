"""Metrics of one module as JSON lines: one object per second or per step, `t` in Unix seconds first.

Invariants:
    - A line is written whole and flushed at once: a reader (report, `tail -f`) sees it and a kill loses nothing.
    - Appending continues an existing file: a restarted module goes on in the same history.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends to `metrics/<module>.jsonl`.

    Args:
        path: the file; its directory is created.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)

    def write(self, **numbers: Any) -> None:
        """Append one line. Values are numbers, texts, or dicts and lists of them; NaN and infinity become null."""
        row = {"t": round(time.time(), 3), **_finite(numbers)}
        self._file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order; a last line cut off by a kill is left out."""
    path = Path(path)
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value.item() if hasattr(value, "item") else value
