"""Loading a whole model's weights into a vLLM server: it reads the files itself, or a sender streams them to it.

Two of one interface, `WeightLoading`. Files need a directory that both sides see, and the server reads it while it is
paused. A stream needs neither a shared directory nor the server's disk: `WeightSender` reads the files beside us, and
vLLM's weight transfer engine takes the tensors off the wire.

The sender is a process: it has torch, and for NCCL vLLM and a GPU that no server uses (NCCL takes no two ranks on one),
while this process has neither. A broadcast knows no time limit that helps: where a turn fails before the sender has
replied, the sender is ended amid what it was doing, and the next turn starts a new one.

Invariants:
    - What can be done before the server pauses is done before: connecting, reading headers, waiting for a turn.
    - One server at a time: a `turn` is held from before its server pauses until the stream has ended.
    - The sender dies with this process, `kill -9` included.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeAlias

from dart_agent.engines.base.engine import EngineError, EngineTimeout, UpdateNotBegun
from dart_agent.engines.http.http_server import RouteMissing
from dart_agent.engines.vllm.vllm_control import VLLMControl
from dart_agent.engines.weight_stream import SENDER
from dart_gym.utils.processes import die_with_parent

Load: TypeAlias = Callable[[str], Awaitable[None]]
"""Have the paused server load, and label the weights."""
NUM_BUFFERS = 2
Backend = Literal["nccl", "tcp"]
CLOSE_S = 3.0
OTHER_SIDE_S = 2.0  # a server whose sender died tells of a broken connection, and the sender's end is known just after
LINE_BYTES = 1 << 26  # of one reply: it names all tensors


class WeightLoading(Protocol):
    """A way into a server."""

    hint: str
    """Advice for an error message: where to look."""

    def ready(self, control: VLLMControl, path: str, timeout_s: float) -> AbstractAsyncContextManager[Load]:
        """Prepare all that needs no pause; the block then pauses the server and calls the function that it got.

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


class WeightSender:
    """One sender process, started when it is first needed. Use it within one event loop.

    Args:
        backend: "nccl" for GPUs; "tcp" without.
        python: the interpreter of the sender's environment; None for ours.
        address: address under which the servers reach this machine.
        buffer_bytes: a buffer of tensors is sent once it holds more than this.
    """

    def __init__(
        self,
        backend: Backend = "nccl",
        *,
        python: str | None = None,
        device: str = "cuda:0",
        address: str = "127.0.0.1",
        buffer_bytes: int = 1 << 30,
        log: Path | None = None,
    ) -> None:
        self.backend = backend
        self.address = address
        self.buffer_bytes = buffer_bytes
        self.argv = (python or sys.executable, str(SENDER), "cpu" if backend == "tcp" else device)
        self._log = log
        self.process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._working = False  # it has a request that it has not replied to

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have the sender to oneself; where the block fails, what it was doing is ended with its process."""
        async with self._turn:
            try:
                yield
            except BaseException:
                if self._working:
                    await self._end(0.0)
                raise

    async def ask(self, op: str, *, timeout_s: float, **values: Any) -> dict[str, Any]:
        """Ask by `dart_weight_stream`, within a turn. Raises `EngineTimeout`; `EngineError`: it failed or ended."""
        try:
            async with asyncio.timeout(timeout_s):
                process = await self._started()
                self._working = True
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(json.dumps({"op": op, **values}).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise EngineTimeout(f"the sender of weights did not answer {op!r} within {timeout_s:.0f} s") from None
        except OSError as error:
            raise EngineError(self._gone(op)) from error
        if not line:
            raise EngineError(self._gone(op))
        self._working = False
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise EngineError(f"the sender of weights failed to {op}: {reply['error']}")
        return reply

    async def warm(self, timeout_s: float = 300.0) -> None:
        """Start the process early, because importing torch takes long.

        Raises:
            EngineError: if it cannot be started.
        """
        async with self.turn():
            await self.ask("leave", timeout_s=timeout_s)

    async def close(self) -> None:
        """End the process. Idempotent."""
        await self._end(CLOSE_S)

    async def _started(self) -> asyncio.subprocess.Process:
        if self.process is None or self.process.returncode is not None:
            with open(self._log or os.devnull, "ab") as log:
                self.process = await self._start(log)
        return self.process

    async def _start(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES,
                env={**os.environ, "PYTHONPATH": ""},  # it finds nothing of ours
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise EngineError(f"the sender of weights cannot be started with {self.argv[0]}: {error}") from error

    async def _end(self, grace_s: float) -> None:
        process = self.process
        self.process = None
        self._working = False
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # it ends with its input
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                process.kill()
            await process.wait()

    def _gone(self, op: str) -> str:
        where = f"; see {self._log}" if self._log else ""
        return f"the sender of weights ended over {op!r}{where} (it needs torch, safetensors and, for NCCL, vLLM)"


class FromSender:
    """A sender on this machine reads the directory and streams the tensors.

    The server must have been started with `--weight-transfer-config`, for TCP also with our receiver; see
    docs/guides/engines.md.
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


async def _together(*sides: Coroutine[Any, Any, object]) -> None:
    """Both sides of something that neither can do alone: where one fails, the other may say why for a moment."""
    tasks = [asyncio.ensure_future(side) for side in sides]
    try:
        _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            await asyncio.wait(waiting, timeout=OTHER_SIDE_S)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [result for result in results if isinstance(result, Exception)]
    for failure in failures:
        if not isinstance(failure, EngineError):
            raise failure
    if failures:
        raise type(failures[0])("; ".join(str(failure) for failure in failures)) from failures[0]
