"""What attempts at a suite's tasks say, and the badge in which the suite carries it.

Invariants:
    - A task is certified when every attempt went as it must, and as long as its hash stays what it was.
    - A task without a known solution is neither certified nor at fault: "unproven". One that this machine cannot run
      is "skipped". What failed only sometimes is a flake, and as good a reason for quarantine as what always fails.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import platform
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dart_gym.certification.attempts import GOLDEN, NO_ORACLE, NOTHING, ORACLE, RANDOM, SCREEN_SHARE, Attempt, Unit
from dart_gym.core.errors import ConfigurationError
from dart_gym.tasks.catalog.task import Task
from dart_gym.utils.rates import wilson_interval

CERTIFIED, QUARANTINED, UNPROVEN, SKIPPED = STATUSES = ("certified", "quarantined", "unproven", "skipped")


def fault_of(attempt: Attempt) -> str:
    """Return what an attempt shows to be wrong with its task; "" where it went as it must. Pure."""
    if attempt.fault and attempt.fault != NO_ORACLE:
        return f"{attempt.kind}: {attempt.fault}"
    if attempt.kind == NOTHING and attempt.score != 0.0:
        return f"nothing done scores {attempt.score:g}"
    if attempt.kind in (ORACLE, GOLDEN) and not attempt.fault and attempt.score != 1.0:
        return f"its {'solution' if attempt.kind == ORACLE else 'golden patch'} scores {attempt.score:g}"
    return ""


def judge(units: Sequence[Unit]) -> dict[str, Any]:
    """The entry of one task in a report, by its units. Pure."""
    attempts = [attempt for unit in units for attempt in unit.attempts]
    failed = [
        (attempt.kind, unit.seed, fault) for unit in units for attempt in unit.attempts if (fault := fault_of(attempt))
    ]
    tried, faults = Counter(attempt.kind for attempt in attempts), Counter(kind for kind, _, _ in failed)
    by_fault: defaultdict[str, set[int]] = defaultdict(set)
    for _, seed, fault in failed:
        by_fault[fault].add(seed)
    reasons = [f"{fault} (seed {', '.join(map(str, sorted(seen)))})" for fault, seen in by_fault.items()]
    reasons += [f"left behind: {', '.join(unit.left)} (seed {unit.seed})" for unit in units if unit.left]
    if (share := max(unit.screen_share for unit in units)) > SCREEN_SHARE:
        reasons.append(f"first screens of one seed differ in {share:.2%} of their pixels")
    unproven = any(attempt.fault == NO_ORACLE for attempt in attempts)
    setups = [attempt.setup_s for attempt in attempts if attempt.setup_s is not None]
    chance = [attempt.score for attempt in attempts if attempt.kind == RANDOM and attempt.score is not None]
    if reasons:
        status = QUARANTINED
    else:
        status = UNPROVEN if unproven else CERTIFIED
    return {
        "hash": units[0].hash,
        "status": status,
        "reasons": reasons or [NO_ORACLE] * unproven,
        "seeds": sorted(unit.seed for unit in units),
        "attempts": len(attempts),
        "failed": len(failed),
        "flakes": sum(count for kind, count in faults.items() if count < tried[kind]),
        "setup_s": round(statistics.median(setups), 2) if setups else None,
        "longest_setup_s": round(max(setups), 2) if setups else None,
        "screen_share": round(share, 6),
        "chance": round(statistics.mean(chance), 3) if chance else None,
        "steps": max((attempt.steps for attempt in attempts if attempt.kind == ORACLE), default=0),
        "golden": tried[GOLDEN],
        "left": sum(len(unit.left) for unit in units),
    }


def report_of(
    suite: str,
    units: Iterable[Unit],
    skipped: Mapping[str, Sequence[str]],
    version: str,
    others: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report of a suite, which is its badge; `skipped`: reasons by task; `others`: entries of tasks not played."""
    by_task: defaultdict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        by_task[unit.task].append(unit)
    tasks = {**(others or {}), **{task: judge(found) for task, found in by_task.items()}}
    tasks |= {task: {"status": SKIPPED, "reasons": list(reasons)} for task, reasons in skipped.items()}
    played = [entry for entry in tasks.values() if entry["status"] != SKIPPED]
    attempts, failed, flakes, left = (
        sum(entry.get(key, 0) for entry in played) for key in ("attempts", "failed", "flakes", "left")
    )
    memory = [unit.memory_mb for found in by_task.values() for unit in found]
    return {
        "suite": suite,
        "version": version,
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "repeats": min((len(entry["seeds"]) for entry in played), default=0),
        "counts": {status: sum(entry["status"] == status for entry in tasks.values()) for status in STATUSES},
        **{"attempts": attempts, "failed": failed, "flakes": flakes, "left": left},
        "flake_interval": [round(end, 5) for end in wilson_interval(flakes, attempts)],
        "memory_mb": [round(end, 1) for end in (min(memory, default=0), max(memory, default=0))],
        "tasks": dict(sorted(tasks.items())),
    }


def page_of(report: Mapping[str, Any]) -> str:
    """The report as an HTML page that opens from disk, without a network."""
    page = importlib.resources.files(__package__).joinpath("assets/certificate.html").read_text(encoding="utf-8")
    return page.replace("{{report}}", json.dumps(report).replace("<", "\\u003c"))


def own_badge(suite: str) -> Path:
    """Where the badge belongs that is made here: beside a directory of tasks, else among this user's data."""
    if Path(suite).is_dir():
        return Path(suite).absolute().with_suffix(".certified.json")
    data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return data / "dart-gym" / "certificates" / f"{quote(suite, safe='')}.json"


def read_badge(suite: str) -> dict[str, Any]:
    """Return the badge that was made here, or else the one that the suite comes with.

    Raises:
        ConfigurationError: if there is no badge, or it cannot be read.
    """
    bundled = Path(str(importlib.resources.files(__package__)), "assets", f"{quote(suite, safe='')}.json")
    for path in (own_badge(suite), bundled):
        if path.is_file():
            return badge_of(path)
    raise ConfigurationError(f"{suite} carries no badge; next step: dart-gym certify {suite}")


def badge_of(path: Path) -> dict[str, Any]:
    """Read a badge from a file.

    Raises:
        ConfigurationError: if the file is not a badge.
    """
    try:
        badge = json.loads(path.read_text(encoding="utf-8"))
        return {**badge, "tasks": dict(badge["tasks"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is no badge ({error!r}); next step: remove it, and dart-gym certify"
        ) from error


def is_certified(badge: Mapping[str, Any], task: Task) -> bool:
    """Return whether a badge certifies a task as it is now."""
    entry = badge["tasks"].get(task.id, {})
    return entry.get("status") == CERTIFIED and entry.get("hash") == task.hash
