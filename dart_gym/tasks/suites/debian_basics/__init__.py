"""Suite `debian-basics`: everyday tasks on real applications of Debian 12 at 1280x800, in OSWorld's format.

Each JSON beside this file is one task (`dart_gym.tasks.osworld` tells what its key "dart" holds), except
`_setup.json`: set-up steps by application, which are carried out before those of each task that names the application
in `related_apps`; "all" before those of every task. They make first starts quiet and equal states look equal.

Seeds choose texts, files, values and positions. Seeds below 10,000 are held out for evaluation; training draws its own
from 10,000 on (`dart_gym.tasks.catalog.parameters.FIRST_TRAINING_SEED`).
"""

import importlib.resources
import json
from typing import Any

from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario

SUITE = "debian-basics"
_SETUP = "_setup.json"


def load_tasks() -> list[Task]:
    """All tasks of the suite, with the set-up steps of their applications before their own."""
    folder = importlib.resources.files(__package__)
    setup: dict[str, list[dict[str, Any]]] = json.loads((folder / _SETUP).read_text(encoding="utf-8"))
    tasks = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json") and file.name != _SETUP:
            raw = json.loads(file.read_text(encoding="utf-8"))
            shared = [step for app in ("all", *raw["related_apps"]) for step in setup.get(app.split("_")[0], [])]
            tasks.append(task_from_dict({**raw, "config": [*shared, *raw["config"]]}, suite=SUITE))
    return tasks


make_scenario = OSWorldScenario
