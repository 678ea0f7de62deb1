"""The tasks of a run: known, and at least one of them can be trained on."""

from __future__ import annotations

from dart_train.config.run_config import RunConfig
from dart_train.config.task_names import check_tasks, expand_tasks
from dart_train.preflight.problems import found_by


def task_problems(config: RunConfig, *, here: bool = True) -> list[str]:
    """Return what is wrong with the tasks that are trained, demonstrated and tested.

    Tasks of a cluster elsewhere, or not `here`, are known there: of a suite that is empty here nothing is said then.
    """
    found = found_by(lambda: check_tasks(config, here=here))
    if not found and here and config.cluster.url is None:
        found = found_by(lambda: expand_tasks(config))
    return [f"rollout.tasks: {text}" for text in found]
