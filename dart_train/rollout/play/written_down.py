"""Conversion of decisions of a person or of another model into prompts and responses of a run's own model.

An imported episode has screenshots and actions, but no tokens of the run's model, which training needs. The prompts are
those of the run's conversation, and the responses are the actions in the run's format.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from dart_agent.episodes.screenshots import name_images
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.formats import InexpressibleError
from dart_agent.prompting.conversation import Conversation
from dart_gym.core.actions import action_from_dict
from dart_train.core.train_errors import InvalidTrajectoryError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dart_agent.formats.grammar.action_format import ActionFormat
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens
    from dart_agent.prompting.conversation import ConversationConfig


class Writer:
    """Converts trajectories for one model, its action format and its conversation."""

    def __init__(
        self, tokens: ModelTokens, vision: VisionSpec, action_format: ActionFormat, conversation: ConversationConfig
    ) -> None:
        self._tokens = tokens
        self._vision = vision
        self._format = action_format
        self._conversation = Conversation(tokens, vision, conversation, action_format)

    def write(
        self, trajectory: Trajectory, images: dict[str, NDArray[np.uint8]]
    ) -> tuple[Trajectory, dict[str, NDArray[np.uint8]]]:
        """Return the trajectory with tokens, and its images; unchanged if it has tokens already.

        Decisions without a screenshot or an action, and decisions that were errors, are left out.

        Raises:
            InvalidTrajectoryError: if an action has no spelling in the format, or nothing is left.
        """
        if any(step.prompt_ids for step in trajectory.steps):  # response ids without their prompt do not suffice
            return trajectory, images
        if not trajectory.instruction:
            raise InvalidTrajectoryError(
                f"trajectory {trajectory.trajectory_id} does not say what was asked: import it with --examples"
            )
        self._conversation.begin(trajectory.instruction)
        steps = []
        for index, step in enumerate(trajectory.steps):
            if step.screenshot and step.actions and not step.error:
                try:
                    steps.append(self._step(step, images[step.screenshot]))
                except (InexpressibleError, ValueError) as error:
                    raise InvalidTrajectoryError(
                        f"step {index} of trajectory {trajectory.trajectory_id} has no spelling in the format "
                        f"{self._format.name}: {error}"
                    ) from error
        if not steps:
            raise InvalidTrajectoryError(
                f"trajectory {trajectory.trajectory_id} has no decision with a screenshot and an action"
            )
        named, shown = name_images(dataclasses.replace(trajectory, steps=tuple(steps)))
        return named, {name: image for name, image in shown.items() if not isinstance(image, bytes)}

    def _step(self, step: Step, screen: NDArray[np.uint8]) -> Step:
        height, width = screen.shape[:2]
        self._conversation.observe(screen)
        prompt = self._conversation.prompt()
        actions = tuple(action_from_dict(action) for action in step.actions)
        text = self._format.format(actions, self._vision.space(height, width), step.thought)
        ids = tuple(self._tokens.response(text))
        self._conversation.respond(ids)
        return dataclasses.replace(
            step,
            prompt_ids=prompt.token_ids,
            response_ids=ids,
            logprobs=(),
            version=(0, 0),
            text=text,
            finish_reason="stop",
            engine=step.actor,
            screenshot="",
            screenshot_after="",
            pixels=Pixels(screen=screen, prompt=prompt.images),
        )
