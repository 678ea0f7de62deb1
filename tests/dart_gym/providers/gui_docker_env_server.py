"""A GUI-Docker-Env server for tests: its routes and its ways (it answers a start only when the machine is up)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from dart_gym.desktops.osworld_api.api_server import OSWorldAPI

StartMachine = Callable[[], Awaitable[tuple[OSWorldAPI, object]]]


@dataclass
class Emulator:
    """A machine that runs."""

    token: str
    api: OSWorldAPI


class GuiDockerEnvServer:
    """Serves machines on a loopback port.

    Args:
        start_machine: boots one.
        tokens: name -> how many machines it may have.

    Attributes:
        emulators: those that run, by id.
        gate: a start waits until it is set.
        starting: how many starts wait.
        retry_after: the header of 429.
        failure: what a start answers instead, as (status, message).
        drop_replies: close the connection instead of answering a start.
    """

    def __init__(self, start_machine: StartMachine, tokens: dict[str, int]) -> None:
        self._start_machine, self.tokens = start_machine, tokens
        self.emulators: dict[str, Emulator] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.starting = 0
        self.starts = 0
        self.retry_after: str | None = None
        self.failure: tuple[int, str] | None = None
        self.drop_replies = False
        self.url = ""
        self._tasks: set[asyncio.Task] = set()
        application = web.Application()
        application.add_routes(
            [
                web.get("/ping", self.ping),
                web.get("/tokens", self.show_tokens),
                web.get("/emulators_by_token", self.by_token),
                web.post("/start_emulator", self.start_emulator),
                web.delete("/emulators/{id}", self.delete),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> GuiDockerEnvServer:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    def used(self, token: str) -> int:
        return sum(emulator.token == token for emulator in self.emulators.values())

    async def ping(self, request: web.Request) -> web.Response:
        return web.json_response({"message": "Hello, World!"})

    async def show_tokens(self, request: web.Request) -> web.Response:
        return web.json_response(
            {token: {"current": self.used(token), "limit": limit} for token, limit in self.tokens.items()}
        )

    async def by_token(self, request: web.Request) -> web.Response:
        token = request.query["token"]
        return web.json_response([name for name, emulator in self.emulators.items() if emulator.token == token])

    async def start_emulator(self, request: web.Request) -> web.Response:
        self.starts += 1
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return web.json_response({"message": f"Unknown or unauthorized token '{token}'", "code": 403}, status=403)
        if self.failure is not None:
            status, message = self.failure
            return web.json_response({"message": message, "code": status}, status=status)
        if self.used(token) + self.starting >= self.tokens[token]:
            headers = {"Retry-After": self.retry_after} if self.retry_after else None
            return web.json_response({"message": "Token quota exceeded", "code": 429}, status=429, headers=headers)
        booting = asyncio.ensure_future(self.boot(token))  # goes on when the client leaves, as the original's thread
        self._tasks.add(booting)
        emulator_id = await asyncio.shield(booting)
        if self.drop_replies:
            request.transport.abort()
        api = self.emulators[emulator_id].api.address
        ports = {
            "server_port": api.server_port,
            "chromium_port": api.chromium_port,
            "vlc_port": api.vlc_port,
            "vnc_port": 0,
        }
        data = {"emulator_id": emulator_id, **ports, "token": token}
        return web.json_response({"message": "Emulator started successfully", "code": 0, "data": data})

    async def boot(self, token: str) -> str:
        self.starting += 1
        await self.gate.wait()
        api, _ = await self._start_machine()
        self.starting -= 1
        emulator_id = str(uuid.uuid4())
        self.emulators[emulator_id] = Emulator(token, api)
        return emulator_id

    async def delete(self, request: web.Request) -> web.Response:
        emulator = self.emulators.get(request.match_info["id"])
        if emulator is None:
            return web.json_response({"message": "Emulator not found", "code": 404}, status=404)
        await emulator.api.close()
        del self.emulators[request.match_info["id"]]
        return web.json_response({"message": "Emulator stopped successfully", "code": 0})
