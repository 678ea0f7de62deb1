"""Which replica gets a request, and what becomes of one that failed. Pure."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import Protocol, TypeVar

from dart_agent.engines.base.engine import EngineBusy, EngineError, EngineTimeout, RequestRefused
from dart_train.rollout.fleet.replica import ReplicaState

STICKY_SLACK = 2


class Routable(Protocol):
    """What routing looks at of a replica."""

    name: str
    state: ReplicaState
    in_flight: int

    @property
    def limit(self) -> int:
        """Most requests that it gets at a time."""


_R = TypeVar("_R", bound=Routable)


class Verdict(StrEnum):
    """What a failed request says."""

    FINAL = "final"
    """The request itself is wrong: nobody would serve it otherwise."""
    BUSY = "busy"
    """The replica has too much to do: somebody else now, or the same later."""
    LATE = "late"
    """The replica stands still."""
    SUSPECT = "suspect"
    """The replica or the request is wrong: it is to be found out which. A bad response says that, too."""


def judge(error: EngineError) -> Verdict:
    """Return what an error of a request says."""
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

    READY replicas go before UPDATING ones, and those that have not failed at this request before those that have.
    Among them the last one of the episode (its caches hold the episode's images) unless it has more than `slack`
    requests above the least loaded; else the least loaded, the first of equals. One that is at its limit gets nothing:
    the request waits for it, even where another one is UPDATING. None without one now.
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
