"""Routing: which replica gets a request, and what happens to a failed one. Pure."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Protocol, TypeVar

from dart_agent.engines.base.engine import EngineBusy, EngineError, EngineTimeout, RequestRefused
from dart_train.rollout.fleet.replica import ReplicaState

STICKY_SLACK = 2


class Routable(Protocol):
    """A replica as routing sees it."""

    name: str
    state: ReplicaState
    in_flight: int

    @property
    def limit(self) -> int:
        """Largest number of requests that it gets at the same time."""


_R = TypeVar("_R", bound=Routable)


class Verdict(StrEnum):
    """The conclusion from a failed request."""

    FINAL = "final"
    """The request itself is wrong: no other replica would serve it."""
    BUSY = "busy"
    """The replica has too much to do: try another one now, or the same one later."""
    LATE = "late"
    """The replica hangs."""
    SUSPECT = "suspect"
    """The replica or the request is wrong, which a test must decide. A bad response counts as this, too."""


def judge(error: EngineError) -> Verdict:
    """Return the conclusion from a request's error."""
    match error:
        case RequestRefused():
            return Verdict.FINAL
        case EngineBusy():
            return Verdict.BUSY
        case EngineTimeout():
            return Verdict.LATE
    return Verdict.SUSPECT


def route(
    replicas: Sequence[_R], sticky: str | None, slack: int = STICKY_SLACK, avoid: Collection[str] = ()
) -> _R | None:
    """Choose a replica for a request.

    READY replicas come before UPDATING ones, and those that have not failed at this request before those that have.
    Among them the replica of the episode is preferred, whose caches hold the episode's images, unless it has more than
    `slack` requests above the least loaded one. Otherwise the least loaded replica is chosen, the first among equals. A
    replica at its limit gets nothing: the request waits for it, even if another one is UPDATING. Returns None if there
    is no replica now.
    """
    for state in (ReplicaState.READY, ReplicaState.UPDATING):
        there = [replica for replica in replicas if replica.state is state]
        usable = [replica for replica in there if replica.name not in avoid] or there
        if not usable:
            continue
        free = [replica for replica in usable if replica.in_flight < replica.limit]
        if not free:
            return None
        best = min(free, key=attrgetter("in_flight"))
        last = next((replica for replica in free if replica.name == sticky), best)
        return last if last.in_flight - best.in_flight <= slack else best
    return None
