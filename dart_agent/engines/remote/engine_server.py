"""One engine replica as a process: `python -m dart_agent.engines.remote.engine_server --model DIR --listen ws+unix:///r0.sock`.

Invariants:
    - The socket exists only once the model is loaded: a client that can connect can generate.
    - A client that goes away takes its waiting requests with it; SIGTERM and SIGINT end the process cleanly.
    - Without a token in the environment it listens on Unix sockets and loopback only; on loopback one is made, which
      this user's clients find (`local_tokens`). No page of the web can use it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from dart_agent.engines.base.engine import EngineError, ModelEngine
from dart_agent.engines.remote import engine_frames
from dart_gym.cluster.server.listener import tls_context
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.cluster.wire.local_tokens import LocalToken
from dart_gym.core.errors import ConfigurationError, DartGymError
from dart_gym.core.task_group import TaskGroup
from dart_gym.utils.page_guard import refusal
from dart_gym.utils.processes import follow_parent

log = logging.getLogger(__name__)


class EngineServer:
    """Serves one engine to many clients."""

    def __init__(self, engine: ModelEngine, token: str = "") -> None:
        """Serve `engine`; where `token` is not empty, clients must present it as a bearer token."""
        self._engine, self._token = engine, token
        self._unnamed = False  # on loopback, with a token that nobody chose

    @contextlib.asynccontextmanager
    async def listening(self, url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Listen while the context is open; yields the URL, with the real port where 0 was asked for.

        Args:
            url: where to listen.
            tls: certificate for wss://.

        Raises:
            ConfigurationError: a bad URL, or one that other machines reach while there is no token.
        """
        address = parse_address(url)
        if address.tls != (tls is not None):
            raise ConfigurationError(f"{url}: wss:// needs --tls-cert and --tls-key, and these need wss://")
        if not address.is_local and not self._token:
            raise ConfigurationError(
                f"{url} can be reached from other machines: set {engine_frames.TOKEN_ENV} to a secret, or listen on a "
                "Unix socket or 127.0.0.1"
            )
        local = None if address.is_unix or self._token else LocalToken()
        if local is not None:
            self._token, self._unnamed = local.text, True
        options: dict[str, Any] = {
            "compression": None,
            "max_size": engine_frames.MAX_FRAME,
            "process_request": self._check,
            "origins": [None],
            "close_timeout": 1.0,
        }
        if address.is_unix:
            Path(address.path).unlink(missing_ok=True)
            try:
                async with unix_serve(self._connection, address.path, **options):
                    yield url
            finally:
                Path(address.path).unlink(missing_ok=True)
        else:
            async with serve(self._connection, address.host, address.port, ssl=tls, **options) as server:
                port = next(iter(server.sockets)).getsockname()[1]
                if local is not None:
                    local.publish(port)
                try:
                    yield f"{'wss' if tls else 'ws'}://{address.host}:{port}"
                finally:
                    if local is not None:
                        local.withdraw()

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        headers = request.headers
        if reason := refusal(headers.get_all("Origin"), headers.get_all("Host"), loopback=self._unnamed):
            return connection.respond(HTTPStatus.FORBIDDEN, f"{reason}\n")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._token and not hmac.compare_digest(given.encode(), self._token.encode()):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "the bearer token is missing or wrong\n")
        return None

    async def _connection(self, connection: ServerConnection) -> None:
        """Answer the requests of one client, all at the same time, until it goes."""
        async with TaskGroup() as group:
            running: set[asyncio.Task[None]] = set()
            with contextlib.suppress(ConnectionClosed):
                async for frame in connection:
                    task = group.create_task(self._answer(connection, frame))
                    running.add(task)
                    task.add_done_callback(running.discard)
            for task in running:
                task.cancel()

    async def _answer(self, connection: ServerConnection, frame: bytes | str) -> None:
        request_id = -1
        try:
            message = engine_frames.unpack(frame)
            request_id = message["id"]
            reply: dict[str, Any] = {"id": request_id, "result": await self._perform(message)}
        except (EngineError, engine_frames.FrameError) as error:
            reply = {"id": request_id, **engine_frames.error_fields(error)}
        with contextlib.suppress(ConnectionClosed):  # the client is gone
            await connection.send(engine_frames.pack(reply))

    async def _perform(self, message: dict[str, Any]) -> dict[str, Any]:
        match message.get("op"):
            case "generate":
                return engine_frames.generation_fields(await self._engine.generate(*engine_frames.read_prompt(message)))
            case "update_weights":
                path, version = message.get("path"), message.get("version")
                if not isinstance(path, str) or not isinstance(version, int):
                    raise engine_frames.FrameError("update_weights needs a path and an integer version")
                await self._engine.update_weights(path, version)
                return {}
            case "info":
                return engine_frames.info_fields(await self._engine.info())
            case other:
                raise engine_frames.FrameError(f"unknown operation {other!r}")


async def run(engine: ModelEngine, url: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then close the engine."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    try:
        async with EngineServer(engine, token).listening(url, tls) as actual:
            log.info("engine ready at %s", actual)
            await stop.wait()
    finally:
        await engine.close()


def main(argv: list[str] | None = None) -> None:
    """Entry point of `python -m dart_agent.engines.remote.engine_server`."""
    parser = argparse.ArgumentParser(
        prog="dart_agent.engines.remote.engine_server", description="Serve a model to RemoteEngine."
    )
    parser.add_argument("--model", required=True, help="Hugging Face directory of a Qwen-VL model")
    parser.add_argument("--listen", required=True, help="ws+unix:///path/to.sock or ws://127.0.0.1:port")
    parser.add_argument("--name", default="r0", help="what its results carry")
    parser.add_argument("--version", type=int, default=0, help="version of these weights")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--max-batch", type=int, default=32, help="requests in one batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--tls-cert", type=Path, help="certificate (PEM) for wss://host:port")
    parser.add_argument("--tls-key", type=Path, help="its key (PEM)")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started it dies")
    arguments = parser.parse_args(argv)
    if arguments.die_with_parent:
        follow_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # before torch is imported
    from dart_agent.engines.embedded.transformers_engine import TransformersEngine

    try:
        engine = TransformersEngine(
            arguments.model,
            name=arguments.name,
            version=arguments.version,
            threads=arguments.threads,
            max_batch=arguments.max_batch,
            device=arguments.device,
            dtype=arguments.dtype,
        )
        tls = tls_context(arguments.tls_cert, arguments.tls_key) if arguments.tls_cert else None
        asyncio.run(run(engine, arguments.listen, os.environ.get(engine_frames.TOKEN_ENV, ""), tls))
    except DartGymError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
