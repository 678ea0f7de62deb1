"""OraclePolicy: asks the task itself what a perfect user would do. For demonstrations and for checking tasks."""

from collections.abc import Awaitable, Callable

from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.actions import Action
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
