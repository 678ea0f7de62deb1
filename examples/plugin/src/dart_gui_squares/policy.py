"""The policy "largest": clicks into the largest patch of one colour. `dart-agent eval squares --policy largest`.

A policy is a class with `reset` and `act`, called without arguments once for each desktop. It sees what a person would
see: the screenshot and the instruction.
"""

from __future__ import annotations

import numpy as np

from dart_agent.policies.policy import Decision, Episode
from dart_gym import Click, Observation


class LargestPolicy:
    """Counts pixels by colour; white is the background."""

    def reset(self, episode: Episode) -> None:
        """Begin an episode."""
        self.smallest = "smallest" in episode.instruction

    async def act(self, observation: Observation) -> Decision:
        """Click into the middle of the patch."""
        screen = observation.screenshot.reshape(-1, 3)  # (height * width, 3), RGB
        colors, counts = np.unique(screen, axis=0, return_counts=True)
        patches = sorted((count, index) for index, count in enumerate(counts) if 100 < count < len(screen) // 2)
        color = colors[patches[0 if self.smallest else -1][1]]
        ys, xs = np.nonzero((observation.screenshot == color).all(axis=2))
        return Decision(actions=(Click(x=int(xs.mean()), y=int(ys.mean())),), thought=f"{len(patches)} patches")
