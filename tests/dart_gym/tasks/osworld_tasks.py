"""Where the tests find OSWorld's tasks: the whole set beside the checkout, or the part of it that the tests bring."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUNDLED = ROOT / "tests/data/osworld"


def osworld_tasks() -> Path:
    """The directory named by `DART_GYM_OSWORLD`, else `../shared/osworld`, else the bundled part."""
    named = os.environ.get("DART_GYM_OSWORLD")
    if named:
        return Path(named)
    beside = ROOT.parent / "shared/osworld"
    return beside if beside.is_dir() else BUNDLED
