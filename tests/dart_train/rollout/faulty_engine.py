"""An engine that goes wrong on demand, behind the real protocol: what can be wrong with somebody else's replica."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

from echo_engine import EchoEngine

from dart_agent.engines.base.engine import EngineError, EngineInfo, Generation, Prompt, Sampling
from dart_agent.engines.remote.engine_server import EngineServer


class FaultyEngine(EchoEngine):
    """Its responses name the weights that it really serves.

    Attributes:
        error: raised by every request.
        errors: raised by the next requests, one after the other.
        hangs: requests are never answered.
        deaf: nor is anything else.
        claims: the version that it says it serves, where that is a lie.
        claims_for_responses: the one that its responses carry.
        logprob: of every token.
        kv_use: what it says of its cache.
        most: requests that it had at the same time.
        loads: versions that it was given.
    """

    def __init__(self, name: str, version: int, delay_s: float = 0.005) -> None:
        super().__init__(name, "", version, delay_s, "")
        self.error: EngineError | None = None
        self.errors: list[EngineError] = []
        self.hangs = self.deaf = False
        self.claims: int | None = None
        self.claims_for_responses: int | None = None
        self.logprob = -1.0
        self.kv_use = 0.0
        self.most = self.open_requests = 0
        self.loads: list[int] = []

    @property
    def real_version(self) -> int:
        return self._version

    def restarts_with(self, version: int) -> None:
        self._version = version

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self.open_requests += 1
        self.most = max(self.most, self.open_requests)
        try:
            if self.hangs or self.deaf:
                await asyncio.Event().wait()
            if self.error is not None:
                raise self.error
            if self.errors:
                raise self.errors.pop(0)
            made = await super().generate(prompt, sampling)
        finally:
            self.open_requests -= 1
        claimed = self._version if self.claims_for_responses is None else self.claims_for_responses
        logprobs = tuple(self.logprob for _ in made.response_ids)
        return dataclasses.replace(made, text=str(self._version), logprobs=logprobs, version=(claimed,) * 2)

    async def update_weights(self, path: str, version: int) -> None:
        await super().update_weights(path, version)
        self.loads.append(version)
        self.claims = self.claims_for_responses = None

    async def info(self) -> EngineInfo:
        if self.deaf:
            await asyncio.Event().wait()
        info = await super().info()
        claimed = info.version if self.claims is None else self.claims
        return dataclasses.replace(info, version=claimed, kv_use=self.kv_use, in_flight=self.open_requests)


@contextlib.asynccontextmanager
async def served(directory: Path, *engines: FaultyEngine) -> AsyncIterator[tuple[str, ...]]:
    """Listen for all of them; yields their addresses."""
    async with contextlib.AsyncExitStack() as stack:
        yield tuple(
            [
                await stack.enter_async_context(EngineServer(engine).listening(f"ws+unix://{directory / name}.sock"))
                for name, engine in ((f"f{index}", engine) for index, engine in enumerate(engines))
            ]
        )
