"""RandomPolicy: clicks anywhere. The floor that every other policy is measured against, and a source of load."""

import random

from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.actions import Action, Click, Press, Scroll, Type
from dart_gym.core.outcomes import Observation

_WORDS = ("a", "ok", "hello", "42")
_KEYS = ("enter", "tab", "esc", "down", "up", "space")


class RandomPolicy:
    """A `Policy` that clicks uniformly, and if asked to types, presses and scrolls as well."""

    def __init__(self, seed: int = 0, *, clicks_only: bool = True) -> None:
        """Make the policy; equal seeds and episodes give equal actions."""
        self._base, self._clicks_only = seed, clicks_only
        self._random = random.Random(seed)

    def reset(self, episode: Episode) -> None:
        """Start the random stream of this episode."""
        self._random = random.Random(f"{self._base}/{episode.task_id}/{episode.seed}")

    async def act(self, observation: Observation) -> Decision:
        """One action."""
        return Decision((self._action(*observation.screenshot.shape[:2]),))

    def _action(self, height: int, width: int) -> Action:
        choose = self._random
        x, y = choose.randrange(width), choose.randrange(height)
        kind = "click" if self._clicks_only else choose.choice(["click"] * 6 + ["type", "press", "scroll"])
        if kind == "type":
            return Type(choose.choice(_WORDS))
        if kind == "press":
            return Press((choose.choice(_KEYS),))
        if kind == "scroll":
            return Scroll(x, y, dy=choose.choice([-5, 5]))
        return Click(x, y)
