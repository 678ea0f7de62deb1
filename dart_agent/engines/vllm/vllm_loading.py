"""How a whole model's weights get into a vLLM server: it reads their files itself, or a sender streams them to it.

Two of one interface, `WeightLoading`; adapters have a way of their own (`vllm_adapters`). Files need a directory that
both sides see, and the server reads it while it is paused. A stream needs neither a shared directory nor the server's
disk: `WeightSender` reads the files beside us, and vLLM's weight transfer engine takes the tensors off the wire.

Invariant: what can be done before the server pauses is done before: connecting, reading headers, waiting for a turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

from dart_agent.engines.base.engine import EngineError, UpdateNotBegun
from dart_agent.engines.http.http_server import RouteMissing
from dart_agent.engines.vllm.vllm_control import VLLMControl
from dart_agent.engines.vllm.weight_sender import WeightSender

Load: TypeAlias = Callable[[str], Awaitable[None]]
"""Have the paused server load, and label the weights."""
NUM_BUFFERS = 2


class WeightLoading(Protocol):
    """A way into a server."""

    hint: str
    """What to look at where it failed."""

    def ready(self, control: VLLMControl, path: str, timeout_s: float) -> AbstractAsyncContextManager[Load]:
        """Prepare all that needs no pause; the block then pauses the server and calls the function that it got.

        Args:
            control: of the server.
            path: the checkpoint directory.
            timeout_s: for each part of it.

        Raises:
            UpdateNotBegun: it cannot be, and the server was not asked for anything.
            EngineError: it cannot be; the server still has its old weights.
        """


class FromFiles:
    """The server reads the directory."""

    hint = "Does the server see this directory, and is it a checkpoint of the same model?"

    @contextlib.asynccontextmanager
    async def ready(self, control: VLLMControl, path: str, timeout_s: float) -> AsyncIterator[Load]:
        """See `WeightLoading`."""

        async def load(label: str) -> None:
            await control.reload_weights(path, timeout_s=timeout_s)
            await control.update_weight_version(label)

        yield load


class FromSender:
    """A sender on this machine reads the directory and streams the tensors.

    The server must have been started with `--weight-transfer-config`, for TCP also with our receiver; see
    docs/engines.md.

    Args:
        sender: shared by all engines of this process, which take turns.
    """

    hint = "Is it a checkpoint of the same model, and does the server reach the sender's address?"

    def __init__(self, sender: WeightSender) -> None:
        self._sender = sender

    @contextlib.asynccontextmanager
    async def ready(self, control: VLLMControl, path: str, timeout_s: float) -> AsyncIterator[Load]:
        """See `WeightLoading`."""
        async with self._sender.turn():
            try:
                tensors = await self._sender.ask("open", path=path, timeout_s=timeout_s)
            except EngineError as error:
                raise UpdateNotBegun(f"{path} cannot be sent: {error}") from error
            await self._meet(control, timeout_s)

            async def load(label: str) -> None:
                await control.start_weight_update()
                await _together(
                    control.update_weights(tensors, timeout_s=timeout_s),
                    self._sender.ask("send", buffer_bytes=self._sender.buffer_bytes, timeout_s=timeout_s),
                )
                await control.finish_weight_update(label)
                await control.reset_image_caches()  # reading files does this by itself, a stream does not

            yield load
            await _together(
                control.shutdown_weight_transfer(timeout_s=timeout_s), self._sender.ask("leave", timeout_s=timeout_s)
            )

    async def _meet(self, control: VLLMControl, timeout_s: float) -> None:
        """Make a group of the sender and all workers of the server."""
        world_size = 1 + await control.world_size()
        sender = self._sender
        where = {"backend": sender.backend, "address": sender.address, "world_size": world_size, "within_s": timeout_s}
        port = (await sender.ask("listen", **where, timeout_s=timeout_s))["port"]
        init_info = {
            "master_address": sender.address,
            "master_port": port,
            "rank_offset": 1,  # the sender is rank 0
            "world_size": world_size,
            "packed": True,
            "packed_buffer_size_bytes": sender.buffer_bytes,
            "packed_num_buffers": NUM_BUFFERS,
        }
        try:
            await _together(
                control.init_weight_transfer(init_info, timeout_s=timeout_s), sender.ask("join", timeout_s=timeout_s)
            )
        except RouteMissing:
            raise
        except EngineError as error:
            raise EngineError(
                f"{error}; the server must run with --weight-transfer-config and reach {sender.address}"
            ) from error


async def _together(first: Coroutine[Any, Any, object], second: Coroutine[Any, Any, object]) -> None:
    """Both sides of something that neither can do alone: where one fails, the other is not waited for.

    Raises:
        EngineError: that of the side that failed first.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(first)
            group.create_task(second)
    except* EngineError as errors:
        raise errors.exceptions[0] from None
