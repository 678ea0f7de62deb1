"""Demonstrations before tokenisation: instructions, screenshots and answers.

Pure functions on values. Tokenisation is the conversation's, the same that makes prompts in a rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.prompting.conversation import Conversation
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.collator import Sample


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstrated episode.

    Attributes:
        screenshots: content hash of what was on the screen before each response.
        errors: what the environment said about each response's action; "" where it was carried out.
    """

    task_id: str
    instruction: str
    screenshots: tuple[str, ...]
    responses: tuple[str, ...]
    errors: tuple[str, ...] = ()

    @classmethod
    def from_trajectory(cls, trajectory: Trajectory) -> Demonstration:
        """Return the demonstration that a recorded trajectory shows.

        Raises:
            TrainingError: if a step has no screen or no text.
        """
        for step in trajectory.steps:
            if not step.image_hashes or not step.text:
                raise TrainingError(
                    f"trajectory {trajectory.trajectory_id} has a step without screenshot or text: it cannot be a "
                    "demonstration"
                )
        return cls(
            trajectory.task_id,
            trajectory.instruction,
            tuple(step.image_hashes[-1] for step in trajectory.steps),
            tuple(step.text for step in trajectory.steps),
            tuple(step.action_error for step in trajectory.steps),
        )


def recorded(trajectories: Iterable[Trajectory]) -> list[Sample]:
    """Samples of recorded successes by the ids that were sampled; without reward or ids they are left out."""
    samples: list[Sample] = []
    for number, trajectory in enumerate(trajectories):
        if not trajectory.score or trajectory.score <= 0.0:
            continue
        steps = (step for step in trajectory.steps if step.response_ids and step.prompt_ids)
        samples += [replace(Sample.from_step(step, trajectory=number), logprobs=()) for step in steps]
    return samples


def encode(
    demonstrations: Iterable[Demonstration],
    conversation: Conversation,
    tokens: ModelTokens,
    load_image: Callable[[str], NDArray[np.uint8]],
) -> list[Sample]:
    """Samples of demonstrations, one per response, with the prompts that a rollout would have had."""
    samples: list[Sample] = []
    for number, demonstration in enumerate(demonstrations):
        conversation.begin(demonstration.instruction)
        error = ""
        for step, (screenshot, text) in enumerate(
            zip(demonstration.screenshots, demonstration.responses, strict=True), 1
        ):
            conversation.observe(load_image(screenshot), error)
            prompt = conversation.prompt()
            response = tuple(tokens.response(text))
            conversation.respond(response)
            hashes = demonstration.screenshots[step - len(prompt.images) : step]
            samples.append(Sample(prompt.token_ids, hashes, response, trajectory=number))
            error = demonstration.errors[step - 1] if demonstration.errors else ""
    return samples
