"""Step and Trajectory: what a rollout leaves behind. Plain values; how they lie on disk is `data.files`' business.

Invariants:
    - `Step.prompt_ids` and `Step.response_ids` are exactly what the engine used and sampled.
    - `len(response_ids) == len(logprobs)`; `len(image_hashes)` equals the number of images in the prompt.
    - A trajectory's version is that of its oldest step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dart_gym.core.outcomes import TerminalState


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of the policy.

    Attributes:
        prompt_ids: token ids of the prompt, image pads expanded.
        image_hashes: content hash of each image of the prompt, in order.
        response_ids: the ids that the engine sampled.
        logprobs: behaviour log-probability of each; empty for demonstrations (no behaviour policy).
        version: (oldest, newest) weight version that served it.
        text: the response as text.
        thought: its thought part.
        actions: as dicts (`dart_gym.core.actions.action_to_dict`).
        action_error: what the environment said about it.
        timings: seconds by phase, environment and engine.
        engine: which replica served it.
    """

    prompt_ids: tuple[int, ...]
    image_hashes: tuple[str, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    version: tuple[int, int] = (0, 0)
    text: str = ""
    thought: str = ""
    actions: tuple[dict[str, Any], ...] = ()
    action_error: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode.

    Attributes:
        trajectory_id: unique in the run; the name of its directory.
        run_id: the run it belongs to.
        task_id: such as "miniwob/click-tab".
        task_hash: content hash of the task's definition.
        instruction: as the policy saw it.
        seed: of the environment: equal seeds give equal episodes.
        group_key: rollouts with an equal key are compared with one another (same task, same seed).
        terminal: how it ended.
        reward: score in [0, 1]; None when there is none (environment or evaluation error).
        steps: the decisions; may be empty after an environment error.
        source: "rollout", "oracle", "human".
        timings: seconds by phase, summed over the episode ("reset", "step", "evaluate", "generate", ...).
        created_at: Unix time of its end.
    """

    trajectory_id: str
    run_id: str
    task_id: str
    task_hash: str
    instruction: str
    seed: int
    group_key: str
    terminal: TerminalState
    reward: float | None
    steps: tuple[Step, ...]
    source: str = "rollout"
    timings: dict[str, float] = field(default_factory=dict)
    created_at: float = 0.0

    @property
    def oldest_version(self) -> int:
        """Oldest weight version of any step; 0 without steps."""
        return min((step.version[0] for step in self.steps), default=0)

    @property
    def newest_version(self) -> int:
        """Newest weight version of any step; 0 without steps."""
        return max((step.version[1] for step in self.steps), default=0)
