"""Step and Trajectory: the record of an episode of any policy and purpose. Plain values.

Evaluations, rollouts, demonstrations and people leave the same record; how it lies on disk says `trajectory_format`.

Invariants:
    - `Step.prompt_ids` and `Step.response_ids` are exactly what the engine used and sampled; without a model they are
      empty. `logprobs` has one number per sampled id, or none where there was no behaviour policy.
    - `image_hashes` names every image of the prompt in order; actions are in pixels of the real screen.
    - A trajectory that counts has a score and no `lost_by`. An error never becomes a score of 0.
    - Pixels are never stored with a step: a recorder replaces them by hashes (`screenshots.ImageNames`).
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dart_gym.core.outcomes import TerminalState

Image = NDArray[np.uint8] | Future[tuple[str, bytes]]
"""(H, W, 3) uint8; once no computation needs its pixels, the future of its hash and PNG (`screenshots.pack`)."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """The images of a step while they are only in memory, (H, W, 3) uint8 each.

    Attributes:
        screen: what was seen before the decision; None where the prompt's newest image stands for it.
        prompt: the images of the prompt, as the model gets them.
        after: what was to be seen when the episode ended; None before its last step.
    """

    screen: NDArray[np.uint8] | None = None
    prompt: tuple[Image, ...] = ()
    after: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of a policy and its result.

    Attributes:
        prompt_ids: token ids of the prompt, image pads expanded.
        image_hashes: content hash of each image of the prompt, in order.
        response_ids: the ids that the engine sampled, the stop token included.
        logprobs: natural log-probability of each under the policy that sampled it.
        version: (oldest, newest) version of the weights that served it.
        text: what the model wrote.
        thought: the part of the response that is not the action.
        actions: as dicts (`dart_gym.core.actions.action_to_dict`).
        action_error: what the environment said about the actions; "" where they were carried out.
        timings: seconds by phase of environment, policy and engine.
        engine: which replica answered.
        screenshot: content hash of what was seen before the decision; the prompt's newest image where the screen
            itself was not kept, "" where nothing was.
        screenshot_after: content hash of what was to be seen when the episode ended; "" before its last step.
        screen: (width, height) of the real screen in pixels.
        error: why nothing could be parsed or answered; "" if nothing.
        terminal: the state by which the policy ended the episode; "" if it did not.
        actor: who decided: "policy", "oracle" or "human".
        tokens: the text of each sampled id; empty where no tokenizer was at hand.
        finish_reason: why the engine stopped, "stop" or "length"; "" without a model.
        entropy: mean over the sampled ids of the entropy that each was sampled with, in nats; None where the engine did
            not record it.
        routing: packed experts that a mixture's routers chose for each sampled id (`engines.base.expert_routing`);
            empty where they were not recorded.
        advice: what a teacher was told, or would have answered, in this state; "" where nobody was asked.
        target_ids: the response that a teacher would have given, the stop token included; empty without one.
        teacher_logprobs: natural log-probability of each of `response_ids` under a teacher; empty without one.
        progress: share of the task that was done after it, where the task has checkpoints; None where it has none.
        rewards: what judges say of it, by their names (`dart_agent.judging`).
        reward: of training, of this step: what they say by their weights; None where no judge spoke of it.
        pixels: the images themselves, until a recorder has stored them; not a part of the record.
    """

    prompt_ids: tuple[int, ...] = ()
    image_hashes: tuple[str, ...] = ()
    response_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: tuple[int, int] = (0, 0)
    text: str = ""
    thought: str = ""
    actions: tuple[dict[str, Any], ...] = ()
    action_error: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    engine: str = ""
    screenshot: str = ""
    screenshot_after: str = ""
    screen: tuple[int, int] = (0, 0)
    error: str = ""
    terminal: str = ""
    actor: str = "policy"
    tokens: tuple[str, ...] = ()
    finish_reason: str = ""
    entropy: float | None = None
    routing: bytes = b""
    advice: str = ""
    target_ids: tuple[int, ...] = ()
    teacher_logprobs: tuple[float, ...] = ()
    progress: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    pixels: Pixels | None = field(default=None, repr=False, compare=False)

    @property
    def generated(self) -> bool:
        """Return whether an engine answered: then the ids are those that it used and sampled."""
        return bool(self.finish_reason)

    @property
    def taught(self) -> bool:
        """Return whether a teacher has said something to learn from."""
        return bool(self.target_ids or self.teacher_logprobs)

    @property
    def shown_images(self) -> tuple[str, ...]:
        """Content hashes of all its images, of the prompt and of the screen."""
        return tuple(filter(None, (*self.image_hashes, self.screenshot, self.screenshot_after)))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one episode.

    Attributes:
        task_id: what was played, such as "miniwob/click-tab".
        seed: of the task's initial state: equal seeds give equal episodes.
        instruction: as the policy saw it.
        task_hash: content hash of the task's definition: equal hashes mean comparable scores.
        trajectory_id: unique in its run or evaluation; the name of its directory.
        run_id: the training run that it belongs to; "" outside of one.
        group_key: rollouts with an equal key are compared with one another (same task, same seed).
        source: what it was played for: "rollout", "fork" (a rollout that continues another trajectory), "evaluation",
            or who demonstrated it, "oracle" or "human".
        forked_from: id of the trajectory that it continues; "" for one that was played from its beginning. Its steps
            are those after the fork.
        fork_step: decisions of the episode before those.
        deterministic: False where the task declares that equal seeds and actions may show other screens.
        policy: the policy as it was named on the command line; "" for rollouts.
        app: the task's application, or its suite where it names none; "" where nobody asked.
        terminal: how it ended; INTERRUPTED too where its writer was killed.
        score: in [0, 1], the evaluator's, and the reward of training unless judges take part; None without a score
            (environment, evaluator or engine failed).
        status: of the evaluation, a value of `EvaluationStatus`; "" where none took place.
        evaluator: name and version of what computed the score.
        detail: what environment, evaluator or engine say about a failure or a low score.
        lost_by: what lost it: "engine", "environment", "evaluation", "cluster" (the connection), "fork" (its replayed
            beginning came out differently) or "stop"; "" where it counts.
        error: what the policy could not parse or answer at last; "" if nothing.
        num_actions: actions that were carried out, replayed ones of a fork included.
        attempts: how often it was played until it counted.
        timings: seconds by phase, summed over the episode ("reset", "step", "evaluate", "generate", ...).
        usage: what a hosted model took: tokens by kind ("input", "cached", "written", "output"), "requests", "usd".
        ended_at: Unix time.
        rewards: what judges say of it, by their names, beside the evaluator's score and never in its place.
        reward: of training, where judges take part; None where it is the score.
        steps: the decisions; empty where only the outcome was asked for.
    """

    task_id: str
    seed: int
    instruction: str = ""
    task_hash: str = ""
    trajectory_id: str = ""
    run_id: str = ""
    group_key: str = ""
    source: str = "rollout"
    policy: str = ""
    app: str = ""
    terminal: TerminalState = TerminalState.INTERRUPTED
    score: float | None = None
    status: str = ""
    evaluator: str = ""
    detail: str = ""
    lost_by: str = ""
    error: str = ""
    num_actions: int = 0
    attempts: int = 1
    timings: dict[str, float] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    ended_at: float = 0.0
    forked_from: str = ""
    fork_step: int = 0
    deterministic: bool = True
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    steps: tuple[Step, ...] = ()

    @property
    def success(self) -> bool:
        """Return whether the task was accomplished."""
        return self.score is not None and self.score >= 1.0

    @property
    def trainable(self) -> bool:
        """Return whether it counts in its group: it ended in a trainable state, with a score and with steps."""
        return self.terminal.trainable and self.score is not None and bool(self.steps)

    @property
    def judged(self) -> bool:
        """Return whether a judge takes part in its reward of training."""
        return self.reward is not None or any(step.reward is not None for step in self.steps)

    @property
    def training_reward(self) -> float:
        """Return the reward of training: the score and what judges say of the episode; 0 without a score."""
        return self.reward if self.reward is not None else self.score or 0.0

    @property
    def whole_reward(self) -> float:
        """The same with the rewards of its steps: by it groups are told to have a signal."""
        return self.training_reward + sum(step.reward or 0.0 for step in self.steps)

    @property
    def taught_steps(self) -> int:
        """Number of steps that a teacher has commented on."""
        return sum(step.taught for step in self.steps)

    @property
    def oldest_version(self) -> int:
        """Oldest weight version of any step; 0 without steps."""
        return min((step.version[0] for step in self.steps), default=0)

    @property
    def newest_version(self) -> int:
        """Newest weight version of any step; 0 without steps."""
        return max((step.version[1] for step in self.steps), default=0)

    @property
    def shown_images(self) -> frozenset[str]:
        """Content hashes of all images that its steps refer to."""
        return frozenset(name for step in self.steps for name in step.shown_images)
