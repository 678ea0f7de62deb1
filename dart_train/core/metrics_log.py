"""Metrics of one process as JSON lines: one object per second or per step, `t` in Unix seconds first.

Invariants:
    - A line is written whole and flushed at once: a reader (report, `tail -f`) sees it and a kill loses nothing.
    - Appending continues an existing file: a restarted process continues the same history, on a new line
      where the one before was cut off by a kill or a full disk.
    - Readers skip incomplete lines.
"""

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


class MetricsLog:
    """Appends to `metrics/<process>.jsonl`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut = _ends_in_a_cut_line(self.path)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        if cut:
            self._file.write("\n")

    def write(self, **numbers: Any) -> None:
        """Append one line. Values are numbers, texts, or dicts and lists of them; NaN and infinity become null."""
        row = {"t": round(time.time(), 3), **_finite(numbers)}
        self._file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics file in order; lines that a kill or a full disk cut off are skipped."""
    path = Path(path)
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            row = parse_line(line, path) if line.endswith(b"\n") else None
            if row is not None:
                yield row


def last_of_lives(rows: Iterable[dict[str, Any]], grows: str = "actions") -> list[dict[str, Any]]:
    """Return the last line of each life of a process: its counts begin at 0 again when it is started again.

    Args:
        rows: all lines, in order.
        grows: a count that never falls while a process lives.
    """
    found: list[dict[str, Any]] = []
    for row in rows:
        if found and row.get(grows, 0) >= found[-1].get(grows, 0):
            found[-1] = row
        else:
            found.append(row)
    return found


def engine_use(row: dict[str, Any]) -> float | None:
    """Mean share of the time that the engines computed, from a line of the rollout service; None if it has none."""
    shares = [engine.get("busy_share") for engine in row.get("engines", ())]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def parse_line(line: bytes, path: Path) -> dict[str, Any] | None:
    """Return the object of one line, or None with a warning for anything else."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if isinstance(row, dict):
        return row
    if line.strip():
        _log.warning("a damaged line of %s is left out: %.60r", path, line)
    return None


def _ends_in_a_cut_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value.item() if hasattr(value, "item") else value
