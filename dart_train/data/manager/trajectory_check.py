"""Checks of a trajectory before it is recorded: types and ranges of every number that training uses. Pure.

A rollout may come from a plug-in, an importer or another process. The database has constraints, but a message of the
database names a column and not the fault; NaN passes comparisons, and a NumPy number cannot be stored. So each value is
checked here, and a bad episode is refused by name without affecting the others.
"""

import math
import numbers
import operator
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from dart_agent.engines.base import engine_replies
from dart_agent.engines.base.engine import BadResponse
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_train.core.data_states import POLICY_SOURCES
from dart_train.core.train_errors import InvalidTrajectoryError
from dart_train.data.store.schema import NAME_LENGTH

LARGEST_INTEGER = 2**63 - 1
"""Largest integer that all databases and the files can hold."""


def checked_trajectory(trajectory: Trajectory) -> Trajectory:
    """Check all numbers of a trajectory, and return it with its score as a Python float.

    Raises:
        InvalidTrajectoryError: if a number is invalid or out of range.
    """
    name, by_policy = trajectory.trajectory_id, trajectory.source in POLICY_SOURCES
    if by_policy and not 0 < len(trajectory.group_key) <= NAME_LENGTH:
        raise InvalidTrajectoryError(
            f"trajectory {name} has a group_key of {len(trajectory.group_key)} characters: use 1 to {NAME_LENGTH}"
        )
    trajectory = replace(trajectory, score=_score(trajectory))
    for field, low in (("seed", -LARGEST_INTEGER - 1), ("num_actions", 0), ("attempts", 0)):
        _integer(getattr(trajectory, field), f"{field} of trajectory {name}", low)
    _finite(trajectory.ended_at, f"ended_at of trajectory {name}")
    _check_numbers(trajectory.timings, f"timings of trajectory {name}")
    _check_numbers(trajectory.usage, f"usage of trajectory {name}")
    _check_numbers(trajectory.rewards, f"rewards of trajectory {name}")
    if trajectory.reward is not None:
        _finite(trajectory.reward, f"reward of trajectory {name}")
    for index, step in enumerate(trajectory.steps):
        try:
            _check_step(step, by_policy)
        except BadResponse as error:
            raise InvalidTrajectoryError(f"step {index} of trajectory {name}: {error}") from error
        _check_numbers(step.timings, f"timings of step {index} of trajectory {name}")
        _check_numbers(step.rewards, f"rewards of step {index} of trajectory {name}")
        if step.reward is not None:
            _finite(step.reward, f"reward of step {index} of trajectory {name}")
    return trajectory


def check_images(trajectory: Trajectory, known: Container[str]) -> None:
    """Look whether all images that are shown are `known`. Raises `InvalidTrajectoryError`."""
    for index, step in enumerate(trajectory.steps):
        for image_id in step.shown_images:
            if image_id not in known:
                raise InvalidTrajectoryError(
                    f"step {index} of trajectory {trajectory.trajectory_id} shows image {image_id}, which is neither "
                    "given nor stored"
                )


def _score(trajectory: Trajectory) -> float | None:
    score = trajectory.score
    if score is None:
        return None
    where = f"the score of trajectory {trajectory.trajectory_id} ({trajectory.task_id}) is {score!r}"
    if isinstance(score, bool) or not isinstance(score, numbers.Real):  # to Python a bool is an int
        raise InvalidTrajectoryError(f"{where}, a {type(score).__name__}: the evaluator must return a number in [0, 1]")
    if not 0.0 <= score <= 1.0:  # NaN is in no interval
        raise InvalidTrajectoryError(
            f"{where}, outside [0, 1]: rewards of training are in it; let the evaluator scale what it measures"
        )
    return float(score)


def _check_step(step: Step, by_policy: bool) -> None:
    engine_replies.token_ids(step.prompt_ids, what="prompt token")
    ids = engine_replies.token_ids(step.response_ids)
    if step.logprobs or by_policy:
        engine_replies.logprobs(step.logprobs, len(ids))
    engine_replies.token_ids(step.target_ids, what="target token")
    if step.teacher_logprobs:
        engine_replies.logprobs(step.teacher_logprobs, len(ids))
    engine_replies.versions(step.version)
    if step.entropy is not None:
        engine_replies.number(step.entropy, "the mean entropy", -1e-3, 1e3)
    engine_replies.routed(step.routing, len(ids))


def _check_numbers(values: Mapping[str, Any], what: str) -> None:
    for key, value in values.items():
        _finite(value, f"{key!r} in the {what}")


def _finite(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidTrajectoryError(f"{what} is {value!r}, which is no finite number")


def _integer(value: Any, what: str, low: int) -> None:
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or not low <= found <= LARGEST_INTEGER:
        raise InvalidTrajectoryError(f"{what} is {value!r}, expected an integer of at least {low}")
