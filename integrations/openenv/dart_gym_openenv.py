"""Desktops as an environment of OpenEnv: a typed client, and the environment that OpenEnv's own server serves.

The client speaks to that server and to the port of a cluster alike, which answers OpenEnv's messages by itself where
`integrations/openenv_port` is installed (docs/guides/cluster.md). The server adds what only OpenEnv's has: MCP
messages, schemas, a web page, Spaces.

Invariants:
    - A session of OpenEnv holds one desktop, from its first episode until it ends.
    - A client names a task of a suite: no file, no address, no module of the server's side.
    - An episode that the environment lost has the reward None and `env_fault`, never 0.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets
import uuid
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.core.actions import ACTION_TYPES, Action, action_from_dict
from dart_gym.core.errors import ConfigurationError, DartGymError
from dart_gym.core.outcomes import StepResult, TerminalState
from dart_gym.envs.cluster_link import ClusterLink, background_loop
from dart_gym.sessions.reset_request import DEFAULT_TASK, MAX_SEED, ResetRequest
from dart_gym.utils.png import encode_png

try:
    from fastmcp import FastMCP
    from fastmcp.tools import Tool
    from fastmcp.tools.base import ToolResult
    from mcp.types import ImageContent, TextContent
    from openenv.core import EnvClient
    from openenv.core.client_types import StepResult as ClientResult
    from openenv.core.env_server import types
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
except ImportError as error:
    raise ImportError("OpenEnv is not installed; next step: pip install 'openenv-core>=0.3,<0.4'") from error

_TASK = re.compile(r"[\w+-]+(/[\w+-]+)+")
_TOOL_ACTIONS = {"list_tools": ListToolsAction, "call_tool": CallToolAction}


class DesktopAction(types.Action):
    """An action: its `kind`, and the fields that `dart_gym.core.actions` gives this kind.

    Attributes:
        kind: "click", "type", "press", "scroll", "drag", "wait", "done", ...
    """

    model_config = types.Action.model_config | {"extra": "allow"}
    kind: str = Field(json_schema_extra={"enum": sorted(ACTION_TYPES)})

    def typed(self) -> Action:
        """The action. Raises `TypeError`, `ValueError`: there is none of this kind with these fields."""
        return action_from_dict(self.model_dump(exclude={"metadata"}))

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Any:
        """OpenEnv's own actions on tools arrive here too. Raises `ValidationError`: it is no action."""
        if isinstance(obj, dict) and obj.get("type") in _TOOL_ACTIONS:
            return _TOOL_ACTIONS[obj["type"]].model_validate(obj, **options)
        found = super().model_validate(obj, **options)
        try:
            found.typed()
        except (TypeError, ValueError) as error:
            said = PydanticCustomError("action", "{said}", {"said": str(error)})  # which OpenEnv can send as JSON
            detail = {"type": said, "loc": ("kind",), "input": obj}
            raise ValidationError.from_exception_data(cls.__name__, [detail]) from error
        return found


class DesktopObservation(types.Observation):
    """The screen and what belongs to it.

    Attributes:
        screenshot: PNG of the screen as base64.
        height: of the screen in pixels.
        width: of the screen in pixels.
        instruction: what is to be done.
        action_error: why the last action could not be carried out; "" if it was.
        terminal: how the episode ended; None while it goes on.
        env_fault: whether the environment lost the episode, which has no score then.
        score: of the task's own evaluator, in [0, 1]; None while it goes on, or where there is none.
        evaluation_status: "ok", "evaluation_error" or "environment_error"; None while it goes on.
        evaluation_detail: what the evaluator says.
        accessibility_tree: OSWorld's XML, where a reset asked for it.
    """

    screenshot: str = Field(repr=False)
    height: int
    width: int
    instruction: str
    action_error: str = ""
    terminal: str | None = None
    env_fault: bool = False
    score: float | None = None
    evaluation_status: str | None = None
    evaluation_detail: str = ""
    accessibility_tree: str | None = Field(None, repr=False)

    @property
    def png(self) -> bytes:
        """The screen as a PNG file."""
        return base64.b64decode(self.screenshot)


class DesktopState(types.State):
    """State of an episode; `task_id` and `seed` say what is played."""

    task_id: str | None = None
    seed: int | None = None
    instruction: str | None = None
    terminal: str | None = None


class DesktopClient(EnvClient[DesktopAction, DesktopObservation, DesktopState]):
    """Client of such a server, or of a cluster's port. Actions are `DesktopAction`s or those of `dart_gym`."""

    def _step_payload(self, action: DesktopAction | Action) -> dict[str, Any]:
        if isinstance(action, Action):
            return {"kind": action.kind, **TypeAdapter(type(action)).dump_python(action, mode="json")}
        return action.model_dump(exclude_defaults=True)

    def _parse_result(self, payload: dict[str, Any]) -> ClientResult[DesktopObservation]:
        ended = {"reward": payload["reward"], "done": payload["done"]}
        seen = DesktopObservation(**payload["observation"], **ended, metadata=payload.get("metadata", {}))
        return ClientResult(observation=seen, **ended)

    def _parse_state(self, payload: dict[str, Any]) -> DesktopState:
        return DesktopState(**payload)


def _observed(result: StepResult) -> DesktopObservation:
    seen, outcome = result.observation, result.evaluation
    height, width = seen.screenshot.shape[:2]
    return DesktopObservation(
        screenshot=base64.b64encode(encode_png(seen.screenshot)).decode(),
        height=height,
        width=width,
        instruction=seen.instruction,
        action_error=seen.action_error,
        terminal=result.terminal,
        env_fault=result.terminal is TerminalState.ENV_ERROR,
        score=outcome and outcome.score,
        evaluation_status=outcome and outcome.status,
        evaluation_detail=outcome.detail if outcome else "",
        accessibility_tree=seen.accessibility_tree,
        reward=0.0 if outcome is None else outcome.score,
        done=result.terminal is not None,
    )


class _ActionTool(Tool):
    """A typed action as a tool of MCP; the answer is the screen after it."""

    desktop: Any = Field(exclude=True)

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        """Carry it out, in an episode that begins with the first call."""
        desktop: DesktopEnvironment = self.desktop
        if desktop.fresh:
            await desktop.reset_async()
        seen = await desktop.step_async(DesktopAction.model_validate({**arguments, "kind": self.name}))
        told = seen.model_dump(exclude={"screenshot", "accessibility_tree", "metadata"})
        image = ImageContent(type="image", data=seen.screenshot, mime_type="image/png")
        return ToolResult(
            content=[TextContent(type="text", text=seen.action_error or "done"), image], structured_content=told
        )


class DesktopEnvironment(MCPEnvironment):
    """A desktop of the cluster at `DART_GYM_URL` (token: `DART_GYM_TOKEN`), or of this process's own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = [
            _ActionTool(
                name=kind, description=str(cls.__doc__), parameters=TypeAdapter(cls).json_schema(), desktop=self
            )
            for kind, cls in ACTION_TYPES.items()
        ]
        super().__init__(FastMCP("desktop", tools=tools))
        url = os.environ.get("DART_GYM_URL")
        self._link = ClusterLink(url, "DART_GYM_TOKEN" if url and "DART_GYM_TOKEN" in os.environ else None)
        self._session: ClientSession | None = None
        self._state = DesktopState()

    @property
    def fresh(self) -> bool:
        """Whether no episode has begun yet."""
        return self._session is None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> DesktopObservation:
        """Start an episode; see `reset_async`."""
        return background_loop().run(self._reset, seed, episode_id, **options)

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str = DEFAULT_TASK,
        max_steps: int | None = None,
        time_limit_s: float | None = None,
        accessibility: bool = False,
    ) -> DesktopObservation:
        """Start an episode.

        Args:
            seed: of the episode; drawn without one.
            episode_id: a name of the client's for the episode.
            task_id: `<suite>/<name>`.
            max_steps: the step limit, instead of the task's.
            time_limit_s: wall-clock limit of the episode in seconds.
            accessibility: whether observations hold the accessibility tree.

        Raises:
            ConfigurationError: what is named is no task of a suite.
            DartGymError: no desktop can be had.
        """
        options = {"max_steps": max_steps, "time_limit_s": time_limit_s, "accessibility": accessibility}
        work = background_loop().submit(self._reset, seed, episode_id, task_id, **options)
        return await asyncio.wrap_future(work)

    async def _reset(
        self, seed: int | None, episode_id: str | None, task_id: str = DEFAULT_TASK, **options: Any
    ) -> DesktopObservation:
        if not _TASK.fullmatch(task_id):
            raise ConfigurationError(f"{task_id!r:.60} names no task of a suite, such as {DEFAULT_TASK}")
        if self._session is None:
            self._session = (await self._link.client()).session()
        number = secrets.randbelow(MAX_SEED) if seed is None else seed
        result = await self._session.reset(ResetRequest(task_id, number, **options))
        name = episode_id or str(uuid.uuid4())
        self._state = DesktopState(episode_id=name, task_id=task_id, seed=number)
        return self._noted(result)

    def _noted(self, result: StepResult) -> DesktopObservation:
        seen = _observed(result)
        told = {"step_count": result.step_index, "instruction": seen.instruction, "terminal": seen.terminal}
        self._state = self._state.model_copy(update=told)
        return seen

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        return background_loop().run(self._step, action, timeout_s)

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """Carry out an action, or one of OpenEnv's on tools. Raises `DartGymError`: no episode is running."""
        if isinstance(action, tuple(_TOOL_ACTIONS.values())):
            return await super().step_async(action, timeout_s)
        return await asyncio.wrap_future(background_loop().submit(self._step, action, timeout_s))

    async def _step(self, action: DesktopAction, timeout_s: float | None) -> DesktopObservation:
        if self._session is None:
            raise DartGymError("no episode is running: reset first")
        deadline = {} if timeout_s is None else {"deadline_s": timeout_s}
        return self._noted(await self._session.step(action.typed(), **deadline))

    @property
    def state(self) -> DesktopState:
        """What is played, and how far it is."""
        return self._state

    def get_metadata(self) -> types.EnvironmentMetadata:
        """Name and description, for OpenEnv's pages."""
        return types.EnvironmentMetadata(name="dart_gym_desktop", description="Desktops with tasks, from DART-Gym.")

    def close(self) -> None:
        """Give the desktop back. Idempotent."""
        super().close()
        session, self._session = self._session, None
        background_loop().run(self._close, session)

    async def _close(self, session: ClientSession | None) -> None:
        if session is not None:
            await session.close()
        await self._link.close()
