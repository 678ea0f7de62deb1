"""How many requests a replica gets at the same time: more while that helps it, fewer once it only queues them. Pure.

Invariants:
    - The limit stays within [least, most]. It grows only while it is what holds requests back, so an idle replica
      does not gain a limit that it has never shown to bear.
    - One overload shrinks it once, not with every look: after a cut it rests until what was sent before has ended.
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
    """A replica's limit of requests at the same time; `rest` counts the looks until it may be cut again."""

    limit: int
    least: int
    most: int
    rest: int = 0

    @classmethod
    def begin(cls, least: int, most: int) -> Concurrency:
        """Begin in the middle of what an engine may bear: it grows within seconds where that is too little."""
        return cls(limit=min(most, max(least, 32)), least=least, most=most)


def overloaded(info: EngineInfo) -> bool:
    """Return whether further requests would only wait: the cache is nearly full, or the next batch is."""
    return info.kv_use >= HIGH_KV_USE or info.waiting > _at_once(info)


def patience(limit_s: float, info: EngineInfo | None, most_s: float) -> float:
    """Return the seconds that a request may take: `limit_s` for each round of requests before it and for its own.

    Args:
        limit_s: seconds of a request that is begun at once.
        info: what the replica last said of its load; None before it did.
        most_s: never more than this, but for `limit_s`.
    """
    rounds = info.waiting / _at_once(info) if info is not None else 0.0
    return max(limit_s, min(most_s, limit_s * (1.0 + rounds)))


def _at_once(info: EngineInfo) -> int:
    return info.capacity or max(1, info.in_flight - info.waiting)


def adapt(state: Concurrency, info: EngineInfo, in_flight: int) -> Concurrency:
    """The limit after a look at a replica: additive growth in quarters, multiplicative cuts (AIMD)."""
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
    """The limit after a replica said that it is too busy."""
    return replace(state, limit=max(state.least, int(state.limit * CUT)), rest=REST_LOOKS)
