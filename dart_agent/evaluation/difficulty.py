"""Difficulty of tasks: pass rates of policies with 95 % intervals, in a small file next to a suite's tasks.

`dart-agent eval` and `dart-gym bench difficulty` write it (`--difficulty`), `data.curation.difficulty` reads it.

Invariants:
    - A new measurement replaces the old one of the same policy and task; all else stays.
    - Lost episodes count for nothing: without any that counts there is no rate.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest
from dart_gym.tasks.catalog.registry import SUITES, is_suite
from dart_gym.utils.durable_files import write_file
from dart_gym.utils.rates import wilson_interval

FILE = "_difficulty.json"
Measured = dict[str, dict[str, dict[str, float]]]
"""By policy and task: "episodes", "rate", "low" and "high"."""


def difficulty_file(name: str) -> Path:
    """Where it lies: beside the tasks of a suite, or the file of that name."""
    if not is_suite(name):
        return Path(name)
    suite = SUITES.get(name)
    module = suite if isinstance(suite, ModuleType) else sys.modules[getattr(suite, "__module__", "")]
    path = Path(str(module.__file__))
    return path.with_name(FILE if path.stem == "__init__" else f"_{path.stem}{FILE}")


def write_difficulty(name: str, policy: str, counts: Mapping[str, tuple[int, int]]) -> Path:
    """Add what a policy reached to the file of a suite, or of that name; `counts` are (successes, episodes) by task.

    Raises:
        ConfigurationError: something else lies there, or it cannot be written.
    """
    path = difficulty_file(name)
    known = _read(path) if path.exists() else {}
    rows = known.setdefault(policy, {})
    for task, (successes, episodes) in counts.items():
        if episodes:
            low, high = (round(end, 4) for end in wilson_interval(successes, episodes))
            rows[task] = {"episodes": episodes, "rate": round(successes / episodes, 4), "low": low, "high": high}
    try:
        write_file(path, json.dumps({"format": 1, "policies": known}, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path} ({error}): name a file instead of the suite") from error
    return path


def known_rates(name: str, policy: str | None = None) -> dict[str, float]:
    """Pass rates by task id, of one policy; None for the only one there is.

    Raises:
        ConfigurationError: no such file or policy, or several and none is named.
    """
    path = difficulty_file(name)
    known = _read(path)
    if policy is None and len(known) == 1:
        policy = next(iter(known))
    if policy not in known:
        asked = f"{path} knows no policy {policy!r}" if policy else f"{path} knows several policies and none is named"
        raise ConfigurationError(f"{asked}; {suggest(policy or '', known)}")
    rates = {task: float(row["rate"]) for task, row in known[policy].items()}
    return {f"{name}/{task.partition('/')[2]}": rate for task, rate in rates.items()} if is_suite(name) else rates


def _read(path: Path) -> Measured:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known: Measured = found["policies"]
        wrong = [task for rows in known.values() for task, row in rows.items() if not 0.0 <= row["rate"] <= 1.0]
        if wrong or found["format"] != 1:
            raise ValueError(f"{wrong[0]} has no rate in [0, 1]" if wrong else f"format {found['format']!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} holds no pass rates by policy ({type(error).__name__}: {error}): dart-agent eval --difficulty "
            "writes them"
        ) from error
    return known
