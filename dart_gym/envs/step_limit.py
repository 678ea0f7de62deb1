"""`max_episode_steps` of `gymnasium.make` as a step limit of the episode, so that an episode that reaches it is scored.

`make` tells an environment nothing of `max_episode_steps`: it wraps a `TimeLimit` around it, which cuts the episode.
The wrapper here goes around that one, and tells the environment the limit before each reset. The native vector
environment needs no such wrapper: `make_vec` gives it `max_episode_steps` as an argument.
"""

from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from dart_gym.utils.uncounted_wrappers import UncountedWrappers


class ScoredStepLimit(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Tell a `DesktopEnv` how many steps the `TimeLimit` between them allows."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        spec = self.env.spec
        self.unwrapped.time_limit_steps = spec.max_episode_steps if spec else None  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as Gymnasium's own wrappers do
        """The specification, of which `make` and `make_vec` make the same again."""
        found = super().spec
        if found is not None:
            found.additional_wrappers = UncountedWrappers(found.additional_wrappers)
        return found
