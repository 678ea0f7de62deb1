"""How a step's result looks to Gymnasium: observations, infos, ends.

Invariants:
    - Every info has the same keys with values of the same types (text "", number nan where there is nothing).
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.outcomes import StepResult, TerminalState

TIMINGS = ("queue", "boot", "prepare", "perform", "settle", "watch", "capture", "accessibility", "evaluate", "total")


def make_observation(result: StepResult, *, accessibility: bool = False) -> dict[str, Any]:
    """A result's observation as the member of the observation space; it shares the result's screenshot."""
    observation = result.observation
    tree = {"accessibility_tree": observation.accessibility_tree or ""} if accessibility else {}
    return {
        "screenshot": observation.screenshot,
        "instruction": observation.instruction,
        "action_error": observation.action_error,
        **tree,
    }


def copied_observation(result: StepResult, *, accessibility: bool = False) -> dict[str, Any]:
    """A result's observation with a screenshot of its own, for a caller who may write into it."""
    observation = make_observation(result, accessibility=accessibility)
    return {**observation, "screenshot": observation["screenshot"].copy()}


def make_info(result: StepResult) -> dict[str, Any]:
    """A result's info."""
    evaluation, timings = result.evaluation, result.timings
    score = evaluation.score if evaluation else None
    return {
        "task_id": str(result.info.get("task_id", "")),
        "task_hash": str(result.info.get("task_hash", "")),
        "seed": int(result.info.get("seed", 0)),  # type: ignore[call-overload]  # an integer on every path
        "pacing": str(result.info.get("pacing", "")),
        "settled": bool(result.info.get("settled", True)),
        "osworld_api": json.dumps(api) if (api := result.info.get("osworld_api")) else "",
        "settle_s": float(result.info.get("settle_s", 0.0)),  # type: ignore[arg-type]  # a number on every path
        "step_index": result.step_index,
        "progress": float(result.info.get("progress", "nan")),  # type: ignore[arg-type]  # a number where there is one
        "terminal": str(result.terminal or ""),
        "score": float("nan") if score is None else float(score),
        "evaluation_status": str(evaluation.status) if evaluation else "",
        "evaluation_detail": evaluation.detail if evaluation else "",
        "action_error": result.observation.action_error,
        "env_fault": result.terminal is TerminalState.ENV_ERROR,
        **{f"timing/{phase}": float(timings.get(phase, 0.0)) for phase in TIMINGS},
    }


def reward_of(result: StepResult, *, shaped: bool = False) -> float:
    """The score at the end of an episode, else 0; where `shaped`, what a step brought: its part of progress and score.

    Shaped rewards add up to the score less what was reached before the first action; where a task has no progress
    they are the others.
    """
    before, score = result.info.get("progress_before"), result.evaluation.score if result.evaluation else None
    reached = result.info.get("progress") if result.terminal is None else score
    if not shaped or not isinstance(before, float):
        return result.reward
    return reached - before if isinstance(reached, float) else 0.0  # an episode that is lost brings nothing more


def stack_infos(infos: Mapping[int, dict[str, Any]], num_envs: int) -> dict[str, Any]:
    """Infos of some environments by number, as Gymnasium's vector environments give them: arrays, and masks "_key".

    All infos have the same keys and types (`make_info`), so that array types do not depend on which comes first.
    """
    if not infos:
        return {}
    ids = np.fromiter(infos, np.intp, len(infos))
    present = np.zeros(num_envs, np.bool_)
    present[ids] = True
    stacked: dict[str, Any] = {}
    for key, value in next(iter(infos.values())).items():
        plain = type(value) in (bool, int, float)
        column: NDArray[Any] = np.zeros(num_envs, type(value)) if plain else np.full(num_envs, None, object)
        for i, info in infos.items():
            column[i] = info[key]
        stacked[key], stacked[f"_{key}"] = column, present.copy()
    return stacked


def ending(result: StepResult) -> tuple[bool, bool]:
    """(terminated, truncated) of a result."""
    if result.terminal is None:
        return False, False
    return not result.terminal.truncated, result.terminal.truncated
