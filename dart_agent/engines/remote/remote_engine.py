"""RemoteEngine: an engine in another process, over a websocket. Needs no torch.

Invariants:
    - Concurrent calls share one connection; replies find their call by id.
    - When the connection breaks, every waiting call gets an `EngineError` at once, and the next call connects
      again: the caller decides whether to retry here or on another replica.
"""

import asyncio
import os
from typing import Any

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from dart_agent.engines.base.engine import EngineError, EngineInfo, EngineTimeout, Generation, Prompt, Sampling
from dart_agent.engines.base.engine_replies import engine_info
from dart_agent.engines.remote import engine_frames
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.cluster.wire.local_tokens import find_local_token
from dart_gym.utils.waits import waiting_for


class RemoteEngine:
    """An `Engine` served by `dart_agent.engines.remote.engine_server`. Use it within one event loop."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float | None = None,
        update_timeout_s: float | None = None,
    ) -> None:
        """Remember where the engine is; the first call connects.

        Args:
            url: of the engine's server.
            token: that it wants; without one that is in DART_ENGINE_TOKEN.
            connect_timeout_s: seconds for a connection.
            request_timeout_s: seconds for one response; None for no limit.
            update_timeout_s: seconds for an update of the weights; None for no limit.
        """
        self.url = url
        self._request_timeout, self._update_timeout = request_timeout_s, update_timeout_s
        self._address = parse_address(url)
        self._token = os.environ.get(engine_frames.TOKEN_ENV, "") if token is None else token
        self._timeout = connect_timeout_s
        self._connection: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self.waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._closed = False

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response. Raises `EngineError`."""
        fields = await self._call(engine_frames.prompt_fields(prompt, sampling), self._request_timeout)
        return engine_frames.read_generation(fields, sampling)

    async def update_weights(self, path: str, version: int) -> None:
        """Have the engine load a checkpoint that it can read at `path`. Raises `EngineError`."""
        await self._call({"op": "update_weights", "path": path, "version": version}, self._update_timeout)

    async def info(self) -> EngineInfo:
        """Current state. Raises `EngineError`."""
        return engine_info(await self._call({"op": "info"}, self._request_timeout))

    async def close(self) -> None:
        """Close the connection; waiting calls fail. Idempotent. The server goes on."""
        self._closed = True
        connection, reader = self._connection, self._reader
        self._connection = self._reader = None
        if connection is not None:
            await connection.close()
        if reader is not None:
            await reader

    async def _call(self, message: dict[str, Any], limit_s: float | None) -> dict[str, Any]:
        """Send one request and wait for its reply. Raises `EngineError`."""
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                with waiting_for(f"an answer of the engine at {self.url}", limit_s):
                    return await self._exchange(message)
        except TimeoutError:
            if not limit.expired():  # the caller's own
                raise
            raise EngineTimeout(f"the engine at {self.url} did not answer within {limit_s:g} s") from None

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        connection = await self._connected()
        self._next_id += 1
        request_id = self._next_id
        reply = self.waiting[request_id] = asyncio.get_running_loop().create_future()
        try:
            await connection.send(engine_frames.pack({"id": request_id, **message}))
            return await reply
        except ConnectionClosed as error:
            raise self._gone(error) from error
        finally:
            del self.waiting[request_id]
            if not reply.cancel() and not reply.cancelled():
                reply.exception()  # seen: the connection may have failed the reply while the request was being sent

    async def _connected(self) -> ClientConnection:
        """Return the live connection, or make a new one."""
        if self._closed:
            raise EngineError(f"the client of the engine at {self.url} is closed")
        if self._connection is not None:
            return self._connection
        async with self._connecting:
            if self._connection is None:
                self._connection = await self._connect()
                self._reader = asyncio.create_task(self._read(self._connection), name=f"engine {self.url}")
            return self._connection

    async def _connect(self) -> ClientConnection:
        token = self._token or find_local_token(self._address)
        options: dict[str, Any] = {
            "compression": None,
            "max_size": engine_frames.MAX_FRAME,
            "open_timeout": self._timeout,
            "additional_headers": {"Authorization": f"Bearer {token}"} if token else {},
        }
        try:
            if self._address.is_unix:
                return await unix_connect(self._address.path, "ws://engine/", **options)
            return await connect(self.url, **options)
        except InvalidStatus as error:
            hint = f": set {engine_frames.TOKEN_ENV}" if error.response.status_code == 401 else ""
            raise EngineError(f"the engine at {self.url} refused the connection ({error}){hint}") from error
        except (OSError, TimeoutError, WebSocketException) as error:
            raise EngineError(f"no engine at {self.url} ({type(error).__name__}: {error}); is it running?") from error

    async def _read(self, connection: ClientConnection) -> None:
        """Hand replies to their calls until the connection ends; then fail those that still wait."""
        reason: Exception | None = None
        try:
            async for frame in connection:
                self._deliver(engine_frames.unpack(frame))
        except (ConnectionClosed, engine_frames.FrameError) as error:
            reason = error
        finally:
            if self._connection is connection:
                self._connection = self._reader = None
            for future in self.waiting.values():
                if not future.done():
                    future.set_exception(self._gone(reason))
        if isinstance(reason, engine_frames.FrameError):
            await connection.close()

    def _deliver(self, message: dict[str, Any]) -> None:
        future = self.waiting.get(message["id"])
        if future is None or future.done():
            return  # its caller was cancelled
        if "error" in message:
            future.set_exception(engine_frames.read_error(message))
        else:
            future.set_result(message.get("result") or {})

    def _gone(self, reason: Exception | None) -> EngineError:
        return EngineError(f"the engine at {self.url} went away ({reason or 'it closed the connection'})")
