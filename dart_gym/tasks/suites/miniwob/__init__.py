"""Suite `miniwob`: MiniWoB++ pages in Chromium, on a screen of 168x224 pixels (6x8 patches of 28).

A seed determines the page's random choices; the instruction is the page's utterance. Pages are left out whose
targets do not fit the screen, that need other than ordinary actions, or that play with time.
"""

import hashlib
from typing import Any

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.suites.miniwob import miniwob_pages
from dart_gym.tasks.suites.miniwob.miniwob_scenario import MiniWobScenario

DESKTOP = DesktopSpec(width=168, height=224, profile="browser", reusable=True, margin=1)

# Default step limits: what the longest instance needs, and one action more.
STEP_LIMITS = {
    "click-test": 2,
    "click-test-2": 2,
    "click-dialog": 2,
    "click-dialog-2": 2,
    "click-tab": 2,
    "focus-text": 2,
    "focus-text-2": 2,
    "click-button": 2,
    "click-link": 2,
    "click-color": 2,
    "click-widget": 2,
    "grid-coordinate": 2,
    "click-button-sequence": 3,
    "click-collapsible": 3,
    "click-collapsible-2": 6,
    "click-option": 3,
    "enter-text": 4,
    "enter-text-dynamic": 4,
    "click-checkboxes": 8,
    "use-spinner": 12,
}

# Of several actions, for multi-turn learning; held-out seeds show instances that no training seed ever shows.
MULTI_TURN_LIMITS = {
    "form-sequence-2": 6,
    "search-engine": 7,
    "login-user": 7,
    "enter-password": 7,
    "read-table-2": 7,
    "copy-paste": 8,
    "multi-layouts": 10,
    "multi-orderings": 10,
    "click-checkboxes-large": 15,
}


def load_tasks() -> list[Task]:
    """All tasks of the suite."""
    return [_task(page, limit) for page, limit in (STEP_LIMITS | MULTI_TURN_LIMITS).items()]


def _task(page: str, max_steps: int) -> Task:
    content = hashlib.sha256(b"".join(miniwob_pages.read(path) for path in miniwob_pages.files_of(page))).hexdigest()[
        :16
    ]
    raw: dict[str, Any] = {"id": page, "instruction": "", "page": page, "content": content, "related_apps": ["chrome"]}
    if page in MULTI_TURN_LIMITS:
        raw["keeps_apart"] = True
    return Task(id=f"miniwob/{page}", instruction="", desktop=DESKTOP, max_steps=max_steps, raw=raw)


make_scenario = MiniWobScenario
