"""Suite `debian-basics`: everyday tasks on real applications of Debian 12 at 1280x800, in OSWorld's format.

Each JSON beside this file is one task (`dart_gym.tasks.osworld` tells what its key "dart" holds), except `_setup.json`,
whose steps make first starts quiet and equal states look equal.

Seeds choose texts, files, values and positions. Seeds below 10,000 are held out for evaluation; training draws its own
from 10,000 on (`dart_gym.tasks.catalog.parameters.FIRST_TRAINING_SEED`).
"""

import functools

from dart_gym.tasks.catalog.registry import bundled_tasks
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario

load_tasks = functools.partial(bundled_tasks, __name__, "debian-basics")
make_scenario = OSWorldScenario
