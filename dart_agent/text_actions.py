"""`TextActions`: a desktop whose actions are the texts of a model.

    env = dart_agent.TextActions(gym.make("DartGym/Desktop-v0", task="miniwob/click-test"), format="ui_tars")
    observation, reward, terminated, truncated, info = env.step("Action: click(start_box='(40,60)')")

Invariants:
    - No text raises. Text that cannot be understood is reported in `info["action_error"]` and in the observation, like
      an action that the desktop cannot carry out; the step counts, and changes nothing.
    - A text with several actions is one step: they are carried out in order until one fails or the episode ends, and
      their rewards are added up. A text with an error in it is not carried out in part.
"""

from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from dart_agent.formats import ActionFormat, ParsedResponse, Screen, get_format
from dart_agent.models.coordinates import CoordinateSpace
from dart_gym.core.actions import Action, Wait
from dart_gym.core.errors import ConfigurationError
from dart_gym.envs.spaces import MAX_TEXT, UnicodeText


class TextActions(gymnasium.ActionWrapper[dict[str, Any], str, Any], RecordConstructorArgs):
    """A wrapper whose action space is text.

    Args:
        env: one of `dart_gym`'s environments (not a vector of them).
        format: name of the format in which actions are written, or a format.
        image: (width, height) of the image that the model sees, where that is not the screenshot as it is nor what the
            format's own models make of it.

    Raises:
        ConfigurationError: an unknown format, or an environment whose actions are not those of a desktop.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], format: str | ActionFormat = "ui_tars", image: tuple[int, int] | None = None
    ) -> None:
        RecordConstructorArgs.__init__(self, format=format, image=image)
        super().__init__(env)
        self.format = get_format(format) if isinstance(format, str) else format
        self.action_space = UnicodeText(MAX_TEXT)
        size = (getattr(env.action_space, "width", None), getattr(env.action_space, "height", None))
        if not isinstance(size[0], int) or not isinstance(size[1], int):
            raise ConfigurationError(f"TextActions wraps a desktop environment, not one with {env.action_space!r:.100}")
        screen = (size[0], size[1])
        self.screen: Screen = screen if image is None else CoordinateSpace(screen, image)

    def parse(self, action: str) -> ParsedResponse:
        """A text, understood."""
        return self.format.parse(action, self.screen)

    def action(self, action: str) -> Action:
        """The first action of a text; `Wait(0)`, which changes nothing, where there is an error."""
        parsed = self.parse(action)
        return Wait(0.0) if parsed.errors else parsed.actions[0]

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Perform the actions of a text; `info["thought"]` is its thought.

        Raises:
            EpisodeStateError: if no episode is running.
        """
        parsed = self.parse(action)
        planned = (Wait(0.0),) if parsed.errors else parsed.actions
        total = 0.0
        for typed in planned:
            observation, reward, terminated, truncated, info = self.env.step(typed)  # type: ignore[arg-type]  # its own kind
            total += float(reward)
            if terminated or truncated or info.get("action_error"):
                break
        if parsed.errors and not info.get("action_error"):
            observation = {**observation, "action_error": parsed.problem}
            info = {**info, "action_error": parsed.problem}
        return observation, total, terminated, truncated, {**info, "thought": parsed.thought}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see the environment's own reset."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "thought": ""}
