"""Names of tasks in a configuration: "suite/*" stands for all tasks of a suite, a list in a file for those in it.

Unknown names are found early.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from dart_gym.cluster.client.cluster_place import place_of
from dart_gym.tasks.catalog.registry import get_task, task_ids
from dart_gym.tasks.requirements.place import Place
from dart_gym.tasks.requirements.runnable import check_runnable, select, select_listed
from dart_train.config.run_config import RUN_TOKEN_ENV, ConfigError, RunConfig
from dart_train.rollout.settings.rollout_config import RolloutConfig

ALL, OSWORLD = "/*", "osworld"


def place_of_desktops(config: RunConfig) -> Place:
    """Return where a run's desktops are: of several nodes nothing is known before their servers have an address."""
    url = config.cluster.url
    if url is None and RUN_TOKEN_ENV in os.environ:
        return Place.elsewhere()
    return place_of(url, config.cluster.token() if url else None)


def expand(names: Iterable[str], place: Place | None = None) -> list[str]:
    """Replace "suite/*", and a list's file, by those of their tasks that can run at a place, or on this machine.

    Raises:
        UnknownTaskError: no such suite.
        UnrunnableTaskError: none of a suite's or a list's tasks can run.
        ConfigError: a suite has no tasks on this machine.
    """
    place = place or Place.of()
    found: list[str] = []
    for name in names:
        if not name.endswith(ALL):
            found += _runnable(name, listed(name), place) or [name]
            continue
        ids = list(select(name.removesuffix(ALL), place).runnable)
        if not ids:
            raise ConfigError(
                f"{name!r} stands for no task on this machine; for OSWorld's tasks let DART_GYM_OSWORLD name the "
                "folder evaluation_examples/examples of its repository, here and where the cluster runs"
            )
        found += ids
    return found


def _runnable(name: str, ids: list[str], place: Place) -> list[str]:
    """Return which tasks of a list can run; all of them where OSWorld's tasks are on another machine only."""
    known = {*task_ids(OSWORLD)} if ids else set()
    if not known.issuperset(ids):
        return ids
    return list(select_listed(f"the list {name}", ids, place).runnable)


def listed(name: str) -> list[str]:
    """The tasks of OSWorld's that a file lists by application, as its test_all.json does; none if it is no such file.

    Raises:
        ConfigError: it is one, and holds something else than names.
    """
    path = Path(name)
    if path.suffix != ".json" or not path.is_file():
        return []
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return []  # no task either: `get_task` says why
    if not isinstance(values, dict) or not values or not all(isinstance(ids, list) for ids in values.values()):
        return []
    ids = [task for tasks in values.values() for task in tasks]
    if not ids or not all(isinstance(task, str) for task in ids):
        raise ConfigError(f"{path} is no list of tasks: by application it must have names in quotes, and one at least")
    return [f"{OSWORLD}/{task}" for task in ids]


def expand_rollout(config: RolloutConfig, place: Place | None = None) -> RolloutConfig:
    """The same with every task named; those of a suite share weight and step limit. A task named itself goes first."""
    named = {entry.id: entry for entry in config.tasks if not (entry.id.endswith(ALL) or listed(entry.id))}
    for entry in config.tasks:
        for task_id in expand([entry.id], place):
            named.setdefault(task_id, entry.model_copy(update={"id": task_id}))
    return config.model_copy(update={"tasks": tuple(named.values())})


def expand_tasks(config: RunConfig) -> RunConfig:
    """A run's configuration with every task named."""
    demonstrations = config.demonstrations
    evaluation = config.evaluation
    place = place_of_desktops(config)
    if demonstrations.tasks is not None:
        demonstrations = demonstrations.model_copy(update={"tasks": tuple(expand(demonstrations.tasks, place))})
    rollout = expand_rollout(config.rollout, place)
    trained = {entry.id for entry in rollout.tasks}
    beside = tuple(task for task in expand(evaluation.beside, place) if task not in trained)
    evaluation = evaluation.model_copy(update={"beside": beside})
    return config.model_copy(update={"rollout": rollout, "demonstrations": demonstrations, "evaluation": evaluation})


def check_tasks(config: RunConfig, *, here: bool = True) -> None:
    """See that tasks and suites are known and can run; a suite may be empty here.

    Args:
        config: the run.
        here: whether the desktops of a run without a cluster's URL will be on this machine, and not on other nodes.

    Raises:
        UnknownTaskError: no such task or suite.
        UnrunnableTaskError: tasks that are named, or all of a suite or list, cannot run.
    """
    place = place_of_desktops(config) if here else Place.elsewhere()
    names = [*config.train_tasks, *(config.demonstrations.tasks or ()), *config.evaluation.beside]
    single = []
    for name in names:
        if ids := listed(name):
            for task_id in ids if task_ids(OSWORLD) else ():
                get_task(task_id)
            _runnable(name, ids, place)
        elif not name.endswith(ALL):
            single.append(get_task(name))
        else:
            select(name.removesuffix(ALL), place)  # raises, with near names
    check_runnable(single, place)
