"""What an episode yields: observations, step results, evaluations. Values, never exceptions.

Invariants:
    - An error is never a reward of 0: `Evaluation.score` is None unless `status` is OK.
    - `StepResult.terminal` is None until the episode ends; once set, `evaluation` is set too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class TerminalState(StrEnum):
    """How an episode ended."""

    DONE = "done"  # the policy said so, or the task itself ended (a MiniWoB++ page that gave its reward)
    FAIL = "fail"  # the policy declared the task infeasible
    STEP_LIMIT = "step_limit"
    TIME_LIMIT = "time_limit"
    PARSE_ERROR = "parse_error"  # the model's text held no action (set by the policy side)
    MODEL_ERROR = "model_error"  # no engine could answer (set by the policy side)
    ENV_ERROR = "env_error"  # the desktop or the task's set-up broke
    DESKTOP_KILLED = "desktop_killed"  # a program inside ended the desktop: a failure of who acted there, not ours
    INTERRUPTED = "interrupted"  # the player was told to stop (set by the policy side)

    @property
    def truncated(self) -> bool:
        """Return whether Gymnasium calls this `truncated` (cut from outside) rather than `terminated`."""
        return self in (self.STEP_LIMIT, self.TIME_LIMIT, self.MODEL_ERROR, self.ENV_ERROR, self.INTERRUPTED)

    @property
    def trainable(self) -> bool:
        """Return whether a trajectory that ended so may be trained on."""
        return self not in (self.MODEL_ERROR, self.ENV_ERROR, self.INTERRUPTED)


class EvaluationStatus(StrEnum):
    """Whether a score exists, and if not, whose fault that is."""

    OK = "ok"
    EVALUATION_ERROR = "evaluation_error"
    ENVIRONMENT_ERROR = "environment_error"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The outcome of an evaluator.

    Attributes:
        status: OK, or which part failed.
        score: success in [0, 1]; None unless status is OK.
        evaluator: name and version of what computed it, such as "miniwob/1.0".
        detail: what a person wants to know about a failure or a low score.
    """

    status: EvaluationStatus
    score: float | None
    evaluator: str
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.score is None) == (self.status is EvaluationStatus.OK):
            raise ValueError(f"score {self.score!r} does not go with status {self.status}")


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy sees.

    Attributes:
        screenshot: (H, W, 3) uint8 RGB, cursor drawn in; owned by the receiver.
        instruction: the task in words; constant over an episode.
        action_error: why the last action could not be carried out; "" if it was.
        accessibility_tree: XML as OSWorld's, or None when not asked for.
    """

    screenshot: NDArray[np.uint8]
    instruction: str
    action_error: str = ""
    accessibility_tree: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step (or the reset) of an episode.

    Attributes:
        observation: the screen after the action has settled.
        terminal: how the episode ended; None until it has ended.
        evaluation: the score; set exactly when `terminal` is.
        step_index: number of actions carried out so far; 0 after a reset.
        timings: seconds by phase ("queue", "reset", "perform", "settle", "capture", "evaluate", ...).
        info: small facts for people and logs ("task_id", "task_hash", "seed", "screen_size", ...).
    """

    observation: Observation
    terminal: TerminalState | None = None
    evaluation: Evaluation | None = None
    step_index: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    info: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.terminal is None) != (self.evaluation is None):
            raise ValueError(f"terminal {self.terminal!r} and evaluation {self.evaluation!r} must be set together")

    @classmethod
    def lost(
        cls,
        size: tuple[int, int],
        detail: str,
        *,
        evaluator: str,
        instruction: str = "",
        step_index: int = 0,
        timings: dict[str, float] | None = None,
        info: dict[str, object] | None = None,
        killed: bool = False,
    ) -> StepResult:
        """The result of an episode whose environment broke: a black screen (of height and width), ENV_ERROR, no score.

        Where a program inside broke it (`killed`), that is terminal DESKTOP_KILLED and a score of 0, or breaking things
        would be a way to have bad episodes left out of training. `evaluator` is who found out: "session" or "cluster".
        """
        observation = Observation(np.zeros((*size, 3), np.uint8), instruction, detail)
        if killed:
            terminal, evaluation = TerminalState.DESKTOP_KILLED, Evaluation(EvaluationStatus.OK, 0.0, evaluator, detail)
        else:
            evaluation = Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, evaluator, detail)
            terminal = TerminalState.ENV_ERROR
        return cls(observation, terminal, evaluation, step_index, timings or {}, info or {})

    @property
    def reward(self) -> float:
        """The score at the end of an episode that has one, else 0.0 (look at `evaluation` before training on it)."""
        return self.evaluation.score or 0.0 if self.evaluation else 0.0
