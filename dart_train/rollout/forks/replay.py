"""Replaying: a policy that takes recorded decisions up to a fork, and decides by itself from there on.

Invariants:
    - Recorded actions are carried out one by one, regardless of what the screens show.
    - At the fork the prompt must equal the recorded one: the same ids, and the same screenshots within a tolerance.
      Otherwise `ForkDiffersError` is raised before any action there.
    - Replayed decisions carry no generation: they are neither recorded nor trained on.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dart_agent.engines.base.engine import EngineError, Generation, Prompt
from dart_agent.episodes.screen_difference import difference, pointer_after
from dart_agent.episodes.screenshots import decode_image
from dart_agent.episodes.trajectory import Image, Step
from dart_agent.policies.policy import Decision, Episode, Policy
from dart_gym.core.actions import action_from_dict
from dart_gym.core.errors import DartGymError
from dart_gym.core.outcomes import Observation
from dart_train.rollout.forks.fork import Fork

ACTOR = "replay"
"""Name of the actor of replayed decisions."""


class ForkDiffersError(DartGymError):
    """A replay did not reach the recorded state; the message says what differs."""


class RecallingPolicy(Policy, Protocol):
    """A policy that can continue after decisions taken in another episode, such as `VLMPolicy`."""

    async def recall(self, observation: Observation, generation: Generation) -> Decision:
        """Take a recorded response to this screen as a decision of this policy."""


class Replaying:
    """Plays one continuation of a fork.

    Args:
        policy: decides from the fork on.
        fork: the fork to replay.

    Attributes:
        replayed: number of replayed decisions.
        arrived: whether the fork was reached and its prompt matched the recorded one.
    """

    def __init__(self, policy: RecallingPolicy, fork: Fork) -> None:
        self._policy = policy
        self._fork = fork
        self._pointer: tuple[int, int] | None = None
        self.replayed = 0
        self.arrived = False

    def reset(self, episode: Episode) -> None:
        """Start the policy's episode."""
        self._policy.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        """Return the next recorded decision, or the policy's own.

        Raises:
            ForkDiffersError: if the prompt at the fork differs from the recorded one.
        """
        if self.replayed < self._fork.step:
            return await self._recall(observation, self._fork.prefix[self.replayed])
        decision = await self._policy.act(observation)
        if not self.arrived and decision.prompt is not None:
            recorded = self._fork.recorded
            found = await asyncio.to_thread(prompt_difference, decision.prompt, recorded, self._pointer)
            if found is None:
                raise ForkDiffersError(f"the prompt at step {self._fork.step} has other words or sizes than recorded")
            if found > self._fork.tolerance:
                raise ForkDiffersError(
                    f"the screen at step {self._fork.step} differs in {found:.3%} of its pixels, allowed are "
                    f"{self._fork.tolerance:.3%}"
                )
            self.arrived = True
        return decision

    async def _recall(self, observation: Observation, step: Step) -> Decision:
        try:
            await self._policy.recall(observation, _generation(step))
        except EngineError as error:
            raise ForkDiffersError(f"step {self.replayed} cannot be replayed: {error}") from error
        self.replayed += 1
        self._pointer = pointer_after(step, self._pointer)
        actions = tuple(action_from_dict(action) for action in step.actions)
        return Decision(actions, step.text, step.thought, step.error, actor=ACTOR)


def prompt_difference(prompt: Prompt, recorded: Step, at: tuple[int, int] | None) -> float | None:
    """Return the largest share of differing pixels of a screenshot; None if ids, number or sizes differ.

    The pointer is masked at `at`, where the last replayed action left it, in pixels of the real screen.
    """
    before = recorded.pixels.prompt if recorded.pixels is not None else ()
    if prompt.token_ids != recorded.prompt_ids or len(prompt.images) != len(before):
        return None
    shares = [
        difference(new, pixels_of(old), recorded.screen, at) for new, old in zip(prompt.images, before, strict=True)
    ]
    return max(shares, default=0.0)


def pixels_of(image: Image) -> NDArray[np.uint8]:
    """Return the (H, W, 3) pixels of a screenshot of an episode in memory, which may be compressed."""
    return decode_image(image.result()[1]) if isinstance(image, Future) else image


def _generation(step: Step) -> Generation:
    return Generation(
        step.text,
        step.response_ids,
        step.logprobs,
        step.version,
        step.finish_reason,
        step.engine,
        (0, 0),
        step.entropy,
        step.routing,
    )
