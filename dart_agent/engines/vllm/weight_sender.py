"""WeightSender: the process that streams weights to vLLM servers, one server at a time.

It has torch, and for NCCL vLLM and a GPU that no server uses (NCCL takes no two ranks on one). This process
has neither. A broadcast knows no time limit that helps: where a turn fails before the sender has replied, the sender is
ended amid what it was doing, and the next turn starts a new one.

Invariants:
    - One server at a time: a `turn` is held from before its server pauses until the stream has ended.
    - The process dies with this one, `kill -9` included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Literal

from dart_agent.engines.base.engine import EngineError, EngineTimeout
from dart_agent.engines.weight_stream import SENDER
from dart_gym.utils.processes import die_with_parent

Backend = Literal["nccl", "tcp"]
CLOSE_S = 3.0
LINE_BYTES = 1 << 26  # of one reply: it names all tensors


class WeightSender:
    """One sender process, started when it is first needed. Use it within one event loop.

    Args:
        backend: "nccl" for GPUs; "tcp" without.
        python: the interpreter of the sender's environment; None for ours.
        device: that it reads tensors to: "cpu" for "tcp", its GPU for "nccl".
        address: of this machine, under which the servers reach it.
        buffer_bytes: a buffer of tensors is sent once it holds more than this.
        log: where its output goes; None for nowhere.
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
        self.backend, self.address, self.buffer_bytes = backend, address, buffer_bytes
        self._argv = (python or sys.executable, str(SENDER), "cpu" if backend == "tcp" else device)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
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
        """Send one request and wait for its reply; see `dart_weight_stream`. Only within a turn.

        Raises:
            EngineTimeout: no reply within `timeout_s`.
            EngineError: it failed, or the sender ended.
        """
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
        """Start the process before it is needed: torch takes its time, and a server would wait meanwhile.

        Raises:
            EngineError: it cannot be started.
        """
        async with self.turn():
            await self.ask("leave", timeout_s=timeout_s)

    async def close(self) -> None:
        """End the process. Idempotent."""
        await self._end(CLOSE_S)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            with open(self._log or os.devnull, "ab") as log:
                self._process = await self._start(log)
        return self._process

    async def _start(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES,
                env={**os.environ, "PYTHONPATH": ""},  # it finds nothing of ours
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise EngineError(f"the sender of weights cannot be started with {self._argv[0]}: {error}") from error

    async def _end(self, grace_s: float) -> None:
        process, self._process, self._working = self._process, None, False
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
