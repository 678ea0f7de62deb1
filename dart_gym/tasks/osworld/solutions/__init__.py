"""Scripted solutions of OSWorld's own tasks that need no network: files `<domain>/<id>.json`, found by the task's id.

Each holds `how`, the way in words, and `oracle` (`oracle_script`). They use the ordinary actions only, on the
profile osworld's 1920x1080 with Debian's applications: a test that tasks, set-up and evaluation fit together, and a
demonstration for anybody who needs one.
"""

import functools
import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def solution(identifier: str) -> list[dict[str, Any]]:
    """The script that solves the OSWorld task of this `id`; [] where none is known."""
    path = known().get(identifier)
    return json.loads(path.read_text(encoding="utf-8"))["oracle"] if path is not None else []


@functools.cache
def known() -> dict[str, Path]:
    """The files by the task's id."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*/*.json"))}
