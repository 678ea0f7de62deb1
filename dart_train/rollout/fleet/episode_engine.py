"""EpisodeEngine: the pool of replicas as one episode sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dart_agent.engines.base.engine import EngineError, EngineInfo, Generation, Prompt, Sampling

if TYPE_CHECKING:
    from dart_train.rollout.fleet.engine_pool import EnginePool


class EpisodeEngine:
    """An `Engine` whose requests go to the same replica while that is sensible."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._last: str | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response. Raises `EngineError`."""
        generation, self._last = await self._pool.generate_near(prompt, sampling, self._last)
        return generation

    async def update_weights(self, path: str, version: int) -> None:
        """Not an episode's business.

        Raises:
            EngineError: always.
        """
        raise EngineError("weights are updated through the pool")

    async def info(self) -> EngineInfo:
        """The pool's state."""
        return await self._pool.info()

    async def close(self) -> None:
        """Nothing is held."""
