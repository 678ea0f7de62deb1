"""The typed actions of one episode as tools of an MCP server in this process, for models that call tools.

Invariants:
    - The server is on loopback, at a path that nobody can guess, for one episode. What comes there becomes typed
      actions of that episode's desktop and nothing else: no other task, no score, no file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

import mcp_types as types
import uvicorn
from mcp import Client
from mcp.server.lowlevel import Server
from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content

from dart_gym.cluster.client.cluster_client import ClientSession
from dart_gym.commands.mcp_server import Lease, offered
from dart_gym.core.actions import Action
from dart_gym.core.outcomes import StepResult, TerminalState
from dart_gym.sessions.reset_request import ResetRequest

OFFERED = frozenset({"actions", "screenshot"})


class _Server(uvicorn.Server):
    """Leaves signals to the evaluation, in whose process it is."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class DesktopTools:
    """An episode on a session: what the model's tools do, and what came of it.

    Args:
        session: of a cluster; nothing was reset on it yet.
        request: the episode.
    """

    def __init__(self, session: ClientSession, request: ResetRequest) -> None:
        self._session, self._request = session, request
        self._lease: Lease | None = None
        self.seen: StepResult | None = None

    async def begin(self) -> StepResult:
        """Start the episode. Raises `DartGymError`."""
        self.seen = await self._session.reset(self._request)
        self._lease = Lease(self, self._request, OFFERED, self.seen)  # type: ignore[arg-type]  # of a session it only steps
        return self.seen

    async def step(self, action: Action) -> StepResult:
        """For the lease: the session's step."""
        self.seen = await self._session.step(action)
        return self.seen

    async def end(self) -> StepResult:
        """The episode's last result, scored; where the model stopped before its end, by what it had reached."""
        assert self.seen is not None, "begin comes first"
        if self.seen.terminal is None:
            self.seen = await self._session.finish(TerminalState.STEP_LIMIT)
        return self.seen

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """The address of the MCP server, while it is open."""
        server = Server[Any]("desktop", on_list_tools=self._list, on_call_tool=self._call)
        path = f"/{secrets.token_urlsafe(24)}"
        app = server.streamable_http_app(streamable_http_path=path, json_response=True, stateless_http=True)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            running = _Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
            serving = asyncio.create_task(running.serve([listening]))
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}{path}"
            finally:
                running.should_exit = True
                await serving

    async def _list(self, *_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(offered(OFFERED - {"screenshot"}).values()))

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in offered(OFFERED - {"screenshot"}):
            text = types.TextContent(type="text", text=f"there is no tool {params.name!r:.60}")
            return types.CallToolResult(content=[text], is_error=True)
        assert self._lease is not None, "begin comes first"
        return await self._lease.call(params.name, params.arguments or {})


class ToolCalls:
    """The tools of MCP servers for a chat: an async context manager.

    Args:
        urls: of the servers, by name.
    """

    def __init__(self, urls: dict[str, str]) -> None:
        self._urls, self._clients = urls, dict[str, Client]()
        self.schemas: list[dict[str, Any]] = []
        self.over = False  # whether the episode has ended

    async def __aenter__(self) -> ToolCalls:
        async with contextlib.AsyncExitStack() as stack:
            for url in self._urls.values():
                client = await stack.enter_async_context(Client(url))
                for tool in (await client.list_tools()).tools:
                    self._clients[tool.name] = client
                    told = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                    self.schemas.append({"type": "function", "function": told})
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        """The message of role "tool" that answers a call of a model; what is wrong with the call is said in it."""
        message = {"role": "tool", "tool_call_id": call["id"]}
        name, text = call["function"]["name"], call["function"]["arguments"]
        try:
            arguments = json.loads(text or "{}")
        except ValueError as error:
            return {**message, "content": f"the arguments are no JSON: {error}"}
        if name not in self._clients or not isinstance(arguments, dict):
            return {**message, "content": f"there is no tool {name!r:.60}, or its arguments are no object"}
        result = await self._clients[name].call_tool(name, arguments)
        self.over = self.over or bool((result.structured_content or {}).get("terminal"))
        return {**message, "content": mcp_content_to_chat_content(result.content)}
