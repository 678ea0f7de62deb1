"""Desktops as an environment of TRL: `GRPOTrainer(..., environment_factory=DesktopTools)`.

TRL offers the model every public method but `reset` and `get_reward` as a tool: there are no other public ones here.

Invariants:
    - A desktop is held from `reset` to `get_reward`: while the trainer computes its update, others may have it.
    - A tool's arguments become typed actions; wrong ones are an error that the model reads.
    - What environment or evaluator lost has the reward None, which TRL leaves out of its group.
"""

from __future__ import annotations

from typing import Any, Literal

from PIL import Image

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.core.actions import Action, Click, Done, Drag, Fail, Press, Scroll, Type, Wait
from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.outcomes import StepResult, TerminalState
from dart_gym.envs.cluster_link import ClusterLink

try:
    import trl  # noqa: F401  nothing here works without it
except ImportError as error:
    raise MissingDependencyError("TRL is not installed; next step: pip install './integrations/trl'") from error

Content = list[dict[str, Any]]
"""Parts of a message, as TRL passes them to a processor: {"type": "image", "image": ...}, {"type": "text", ...}."""


class DesktopTools:
    """One desktop. For a cluster: `functools.partial(DesktopTools, url="ws://...", token_env="NAME")`.

    Args:
        url: the cluster; None for one of this process's own.
        token_env: the environment variable that holds the cluster's token.
    """

    def __init__(self, url: str | None = None, token_env: str | None = None) -> None:
        self._link = ClusterLink(url, token_env)
        self._session: ClientSession | None = None
        self._seen: StepResult | None = None

    def reset(self, task: str, seed: int, max_steps: int | None = None, **row: Any) -> Content:
        """Start the episode of a row of the data set; the instruction and the screen, which TRL adds to its prompt.

        Args:
            task: the row's task, "<suite>/<name>".
            seed: of its initial state. TRL repeats a row for all generations of a group: they start alike.
            max_steps: most actions; None for the task's own limit.
            row: its other columns.
        """
        self._leave()
        self._seen = self._link.loop.run(self._begin, task, seed, max_steps)
        instruction = {"type": "text", "text": self._seen.observation.instruction}
        return [self._screen(), instruction]

    async def _begin(self, task: str, seed: int, max_steps: int | None) -> StepResult:
        self._session = (await self._link.client()).session()
        return await self._session.reset(task, seed=seed, max_steps=max_steps)

    def get_reward(self) -> float | None:
        """The task's own score in [0, 1] of what was reached; None where environment or evaluator failed."""
        if self._seen is None:
            return None
        if self._seen.terminal is None and self._session is not None:
            self._seen = self._link.loop.run(self._session.finish, TerminalState.STEP_LIMIT)
        self._leave()
        return self._seen.evaluation.score if self._seen.evaluation else None

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._link.loop.run(session.close)

    def _screen(self) -> dict[str, Any]:
        assert self._seen is not None
        return {"type": "image", "image": Image.fromarray(self._seen.observation.screenshot)}

    def _act(self, action: Action) -> Content:
        if self._session is None or self._seen is None or self._seen.terminal is not None:
            return [{"type": "text", "text": "The episode has ended."}]
        self._seen = self._link.loop.run(self._session.step, action)
        if self._seen.terminal is not None:
            return [{"type": "text", "text": "The episode has ended."}]
        problem = self._seen.observation.action_error
        return [self._screen(), {"type": "text", "text": problem and f"It failed: {problem}"}]

    def click(self, x: int, y: int, button: Literal["left", "middle", "right"] = "left", count: int = 1) -> Content:
        """Click.

        Args:
            x: pixels from the left.
            y: pixels from the top.
            button: which one.
            count: 2 for a double click.
        """
        return self._act(Click(x, y, button, count))

    def drag(self, x: int, y: int, to_x: int, to_y: int) -> Content:
        """Drag with the left button.

        Args:
            x: where from.
            y: where from.
            to_x: where to.
            to_y: where to.
        """
        return self._act(Drag(((x, y), (to_x, to_y))))

    def scroll(self, x: int, y: int, dy: int) -> Content:
        """Turn the wheel.

        Args:
            x: where.
            y: where.
            dy: notches down; negative is up.
        """
        return self._act(Scroll(x, y, 0, dy))

    def type(self, text: str) -> Content:
        """Type.

        Args:
            text: what.
        """
        return self._act(Type(text))

    def press(self, keys: list[str]) -> Content:
        """Press keys together.

        Args:
            keys: their names, as ["ctrl", "s"].
        """
        return self._act(Press(tuple(keys)))

    def wait(self) -> Content:
        """Look again a second later."""
        return self._act(Wait(1.0))

    def done(self) -> Content:
        """Say that the task is done."""
        return self._act(Done())

    def fail(self) -> Content:
        """Say that the task cannot be done."""
        return self._act(Fail())
