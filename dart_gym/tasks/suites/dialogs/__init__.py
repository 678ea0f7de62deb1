"""Suite `dialogs`: short tasks on plain GTK applications at 320x240, in OSWorld's format, chosen by the seed.

Each JSON beside this file is one task; `dart_gym.tasks.osworld.osworld_scenario` tells what its key "dart" holds.
"""

import functools

from dart_gym.tasks.catalog.registry import bundled_tasks
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario

load_tasks = functools.partial(bundled_tasks, __name__, "dialogs")
make_scenario = OSWorldScenario
