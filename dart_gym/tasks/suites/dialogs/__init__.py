"""Suite `dialogs`: short tasks on plain GTK applications at 320x240, in OSWorld's format, chosen by the seed.

Each JSON beside this file is one task; `dart_gym.tasks.osworld.osworld_scenario` tells what its key "dart" holds.
"""

import importlib.resources
import json

from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario

# A blinking caret would make equal states look different.
_GTK_SETTINGS = {
    "type": "write_file",
    "parameters": {
        "path": "/home/user/.config/gtk-3.0/settings.ini",
        "text": "[Settings]\ngtk-cursor-blink=0\ngtk-enable-animations=0\n",
    },
}


def load_tasks() -> list[Task]:
    """All tasks of the suite."""
    folder = importlib.resources.files(__package__)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    tasks = []
    for file in files:
        raw = json.loads(file.read_text(encoding="utf-8"))
        tasks.append(task_from_dict({**raw, "config": [_GTK_SETTINGS, *raw["config"]]}, suite="dialogs"))
    return tasks


make_scenario = OSWorldScenario
