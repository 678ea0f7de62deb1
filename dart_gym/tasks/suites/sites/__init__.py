"""Suite `sites`: everyday tasks on the bundled mock sites, some across a site and an application, at 1280x720.

Each JSON beside this file is one task in OSWorld's format, with the step `site` and the getters `site_state` and
`site_changes`. Seeds below `dart_gym.tasks.catalog.parameters.FIRST_TRAINING_SEED` are held out for evaluation.
"""

import functools

from dart_gym.tasks.catalog.registry import bundled_tasks
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario

load_tasks = functools.partial(bundled_tasks, __name__, "sites")
make_scenario = OSWorldScenario
