"""OraclePolicy: asks the task itself what a perfect user would do. For demonstrations and for checking tasks."""

import dataclasses
from collections.abc import Awaitable, Callable

from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.actions import Action, Click
from dart_gym.core.outcomes import Observation


class OraclePolicy:
    """A `Policy` with privileged knowledge. Where a suite knows no oracle, `act` raises `TaskError`."""

    def __init__(self, oracle: Callable[[], Awaitable[Action]]) -> None:
        """`oracle` is the `oracle` method of the session that the policy plays on."""
        self._oracle = oracle

    def reset(self, episode: Episode) -> None:
        """Nothing to forget: the state is the desktop's."""

    async def act(self, observation: Observation) -> Decision:
        """The next action."""
        return Decision((await self._oracle(),), actor="oracle")


def snapped(action: Action, grid: int, space: CoordinateSpace | None = None) -> Action:
    """A click moved to the nearest multiple of `grid` pixels; other actions as they are. Fewer targets are easier.

    With the `space` of a model that sees less than the screen's pixels, it is moved on to the nearest place that whole
    numbers of the model name: a fraction is several tokens more, each of which may go wrong.
    """
    if grid <= 1 or not isinstance(action, Click) or action.x is None or action.y is None:
        return action
    x, y = round(action.x / grid) * grid, round(action.y / grid) * grid
    if space is not None:
        across, down = space.to_model(x, y)
        x, y = space.pixel(round(across), round(down))
    return dataclasses.replace(action, x=x, y=y)
