"""Desktops for any MCP client (`dart-gym mcp`): typed actions, screens, trees, set-up and scores as tools.

Invariants:
    - One MCP session (over stdio: the process) holds one session of the cluster from its first call to its end. Over
      HTTP the protocol of 2026-07-28 has no sessions: its clients fall back to the handshake.
    - A client's arguments become typed actions and names of tasks: no file, address or import of this side.
    - A fault of the environment is a tool's error with `env_fault` and no score.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import AnyHttpUrl, BaseModel, Field, TypeAdapter

from dart_gym.cluster.client.cluster_client import ClientSession, ClusterClient
from dart_gym.cluster.server.access_tokens import TokenBook, read_tokens
from dart_gym.core.actions import ACTION_TYPES, action_from_dict
from dart_gym.core.errors import ConfigurationError, DartGymError
from dart_gym.core.outcomes import StepResult
from dart_gym.envs.cluster_link import connect
from dart_gym.sessions.reset_request import DEFAULT_TASK, MAX_SEED, ResetRequest
from dart_gym.utils.png import encode_png

CAPABILITIES = "actions,screenshot,tree,setup,score"
MOST_WAITING = 32  # calls of one session; a client that sends more gets an error


class _Nothing(BaseModel, extra="forbid", strict=True):
    pass


class _Start(_Nothing):
    task: str | None = Field(None, pattern=r"^[\w+-]+(/[\w+-]+)+$", description="<suite>/<name>")  # no file, no module:
    seed: int | None = Field(None, ge=0, lt=MAX_SEED)
    max_steps: int | None = Field(None, ge=1)


_OTHERS = {  # tools that are no actions: capability, arguments, description
    "start": ("setup", _Start, "Start an episode, of the last task where none is named."),
    "screenshot": ("screenshot", _Nothing, "The screen after the last action; `wait` looks again."),
    "accessibility_tree": ("tree", _Nothing, "The accessibility tree after the last action, as XML."),
    "score": ("score", _Nothing, "The score of the episode in [0, 1], null while it goes on; `done` ends it."),
}


@lru_cache
def offered(capabilities: frozenset[str]) -> dict[str, types.Tool]:
    """The tools of some capabilities, by name. Pure."""
    found: list[tuple[str, Any, str]] = [(name, *of[1:]) for name, of in _OTHERS.items() if of[0] in capabilities]
    found += [(kind, cls, str(cls.__doc__)) for kind, cls in ACTION_TYPES.items() if "actions" in capabilities]
    closed = {"additionalProperties": False}
    schemas = {name: TypeAdapter(cls).json_schema() | closed for name, cls, _ in found}
    return {name: types.Tool(name=name, description=text, input_schema=schemas[name]) for name, _, text in found}


def _answer(text: str, told: dict[str, Any] | None = None, png: bytes = b"") -> types.CallToolResult:
    """A tool's result; without `told` it is an error."""
    image = types.ImageContent(type="image", data=base64.b64encode(png).decode(), mime_type="image/png")
    content = [types.TextContent(type="text", text=text), *([image] if png else [])]
    return types.CallToolResult(content=content, structured_content=told, is_error=told is None or told["env_fault"])


@dataclass
class Lease:
    """One MCP session's desktop; an episode of `request` begins with the first call."""

    session: ClientSession
    request: ResetRequest
    capabilities: frozenset[str]
    _seen: StepResult | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

    async def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Use a tool that is offered; what goes wrong is a result that says so."""
        if self._waiting >= MOST_WAITING:
            return _answer(f"{MOST_WAITING} calls of this session wait already: wait for their answers")
        self._waiting += 1
        try:
            async with self._turn:
                result = await self._advance(name, arguments)
        except (DartGymError, ValueError, TypeError) as error:
            return _answer(" ".join(str(error).partition("\n    For further")[0].split()))
        finally:
            self._waiting -= 1
        seen = result.observation
        outcome = result.evaluation
        png = b""
        told = {"instruction": seen.instruction, "action_error": seen.action_error, "step": result.step_index}
        told |= {"terminal": result.terminal, "env_fault": bool(outcome and outcome.score is None)}
        if "score" in self.capabilities:
            told |= {"score": outcome and outcome.score, "detail": outcome.detail if outcome else ""}
        if "screenshot" in self.capabilities and name not in ("score", "accessibility_tree"):
            png = await asyncio.to_thread(encode_png, seen.screenshot)
        return _answer((seen.accessibility_tree or "") if name == "accessibility_tree" else json.dumps(told), told, png)

    async def _advance(self, name: str, arguments: dict[str, Any]) -> StepResult:
        action = action_from_dict({**arguments, "kind": name}) if name in ACTION_TYPES else None
        if name == "start" or self._seen is None:
            chosen = _Start.model_validate(arguments if name == "start" else {}).model_dump(exclude_none=True)
            asked = replace(self.request, **{"seed": secrets.randbelow(MAX_SEED), **chosen})
            self._seen = await self.session.reset(asked)
            self.request = asked
        if action is not None:
            self._seen = await self.session.step(action)
        return self._seen


@dataclass
class Door:
    """Admission of clients, and their leases by (owner's name, MCP session's id)."""

    cluster: ClusterClient
    request: ResetRequest
    capabilities: frozenset[str]
    book: TokenBook
    leases: dict[tuple[str, str], Lease] = field(default_factory=dict)

    async def leave(self, key: tuple[str, str]) -> None:
        """Give a desktop back, if it is still held."""
        if lease := self.leases.pop(key, None):
            await lease.session.close()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Whose token it is, for the SDK."""
        found = self.book.find(token)
        return AccessToken(token="", client_id=found.name, scopes=[]) if found else None

    async def list_tools(self, *_: Any) -> types.ListToolsResult:
        """The SDK's handler of `tools/list`."""
        return types.ListToolsResult(tools=list(offered(self.capabilities).values()))

    async def call_tool(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Handle `tools/call` for the SDK.

        Raises:
            MCPError: if there is no session, or its token's quota is used up.
        """
        if params.name not in (tools := offered(self.capabilities)):
            return _answer(f"no tool {params.name!r:.60} is offered here; there are {', '.join(tools)}")
        key, http = ("", ""), context.request
        if http is not None:
            key = (http.user.username if "user" in http.scope else "", http.headers.get("mcp-session-id", ""))
            if not key[1]:
                await _refuse()
        if key not in self.leases:
            held, quota = sum(owner == key[0] for owner, _ in self.leases), self.book.quota(key[0])
            if quota is not None and held >= quota:
                raise MCPError(types.INVALID_REQUEST, f"{key[0]} holds as many desktops as its token may ({held})")
            self.leases[key] = Lease(self.cluster.session(), self.request, self.capabilities)
            if http is not None:  # where the SDK keeps what ends with a connection; it has no public way there
                context.session._connection.exit_stack.push_async_callback(self.leave, key)
        return await self.leases[key].call(params.name, params.arguments or {})


async def _refuse(*_: Any) -> None:
    raise MCPError(types.METHOD_NOT_FOUND, "a session holds the desktop: begin with initialize")


async def serve_mcp(
    url: str | None,
    token_env: str | None,
    task: str | None,
    offer: str,
    http: str | None,
    tokens: Path | None,
    open_to_all: bool,
    idle_s: float,
) -> None:
    """Serve until the client of stdio has gone, or a signal comes; see `dart-gym mcp`. Raises `ConfigurationError`."""
    capabilities = frozenset((offer or CAPABILITIES).split(","))
    if unknown := capabilities - set(CAPABILITIES.split(",")):
        raise ConfigurationError(f"--offer: no {', '.join(sorted(unknown))}; there are {CAPABILITIES}")
    host, _, port = (http or "").rpartition(":")
    if http and not (host and port.isdecimal() and (tokens or (open_to_all and host in ("127.0.0.1", "localhost")))):
        raise ConfigurationError("--http is HOST:PORT, and needs --tokens FILE, or --open on 127.0.0.1")
    book = read_tokens(tokens) if tokens else TokenBook.of_one(None)
    async with connect(url, token_env=token_env) as cluster:
        first = ResetRequest(task or DEFAULT_TASK, 0, accessibility="tree" in capabilities)
        door = Door(cluster, first, capabilities, book)
        server = Server[Any]("dart-gym", on_list_tools=door.list_tools, on_call_tool=door.call_tool)
        if not http:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
            return await door.leave(("", ""))
        server.add_request_handler("server/discover", types.RequestParams, _refuse)
        options: dict[str, Any] = {"session_idle_timeout": idle_s, "max_sessions": 1000, "json_response": True}
        if not book.open:
            settings = AuthSettings(issuer_url=AnyHttpUrl(f"http://{host}"), resource_server_url=None)
            options |= {"token_verifier": door, "auth": settings}
        app = server.streamable_http_app(host=host, **options)
        config = uvicorn.Config(app, host, int(port), log_level="warning", timeout_graceful_shutdown=2)
        listening = config.bind_socket()
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does not: answers would wait 40 ms
        listening.listen()  # a reader of the next line may connect at once
        print(f"listening on http://{host}:{listening.getsockname()[1]}/mcp", flush=True)
        await uvicorn.Server(config).serve(sockets=[listening])
