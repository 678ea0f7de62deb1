"""The number of requests that a replica gets at the same time: it grows while that helps and shrinks on overload. Pure.

Invariants:
    - The limit stays within [least, most]. It grows only while it holds requests back, so an idle replica never gains a
      limit that it has not proven to bear.
    - One overload cuts the limit once. After a cut it rests until the requests sent before have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dart_agent.engines.base.engine import EngineInfo

HIGH_KV_USE = 0.9
LOW_KV_USE = 0.75
CUT = 0.7
GROWTH = 0.25
REST_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The limit of one replica; `rest` counts the looks until it may be cut again."""

    limit: int
    least: int
    most: int
    rest: int = 0

    @classmethod
    def begin(cls, least: int, most: int) -> Concurrency:
        """Return a medium limit to begin with. It grows within seconds if that is too low."""
        return cls(limit=min(most, max(least, 32)), least=least, most=most)


def overloaded(info: EngineInfo) -> bool:
    """Return whether further requests would only wait: the cache is nearly full, or the next batch is."""
    return info.kv_use >= HIGH_KV_USE or info.waiting > _at_once(info)


def patience(limit_s: float, info: EngineInfo | None, most_s: float) -> float:
    """Return the time limit of a request: `limit_s` for each round of requests before it, and for its own round.

    Args:
        limit_s: time limit in seconds of a request that begins at once.
        info: the last reported load of the replica; None before the first report.
        most_s: the longest time limit, unless `limit_s` is longer.
    """
    rounds = info.waiting / _at_once(info) if info is not None else 0.0
    return max(limit_s, min(most_s, limit_s * (1.0 + rounds)))


def _at_once(info: EngineInfo) -> int:
    return info.capacity or max(1, info.in_flight - info.waiting)


def adapt(state: Concurrency, info: EngineInfo, in_flight: int) -> Concurrency:
    """Return the limit after a look at a replica: additive growth, multiplicative cuts (AIMD). Pure."""
    if overloaded(info):
        if state.rest:
            return replace(state, rest=state.rest - 1)
        return replace(state, limit=max(state.least, int(min(state.limit, in_flight) * CUT)), rest=REST_LOOKS)
    rest = max(0, state.rest - 1)
    if in_flight >= state.limit and info.kv_use <= LOW_KV_USE:
        growth = max(1, int(state.least * GROWTH))
        return replace(state, limit=min(state.most, state.limit + growth), rest=rest)
    return replace(state, rest=rest)


def shrink(state: Concurrency) -> Concurrency:
    """Return the limit after a replica said that it is too busy."""
    return replace(state, limit=max(state.least, int(state.limit * CUT)), rest=REST_LOOKS)
