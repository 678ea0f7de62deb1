"""Which replica gets a request, and what becomes of one that failed. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dart_agent.engines.base.engine import BadResponse, EngineBusy, EngineError, EngineTimeout, RequestRefused
from dart_train.rollout.fleet.replica import ReplicaState

STICKY_SLACK = 2
UNLIMITED = 2**31


@dataclass(frozen=True, slots=True)
class Load:
    """What routing looks at."""

    name: str
    state: ReplicaState
    in_flight: int
    limit: int = UNLIMITED


class Verdict(StrEnum):
    """What a failed request says."""

    FINAL = "final"
    """The request itself is wrong, or the model's answer: nobody would serve it otherwise."""
    BUSY = "busy"
    """The replica has too much to do: somebody else now, or the same later."""
    LATE = "late"
    """The replica stands still."""
    SUSPECT = "suspect"
    """The replica or the request is wrong: it is to be found out which."""


def judge(error: EngineError) -> Verdict:
    """What an error of a request says."""
    match error:
        case RequestRefused() | BadResponse():
            return Verdict.FINAL
        case EngineBusy():
            return Verdict.BUSY
        case EngineTimeout():
            return Verdict.LATE
    return Verdict.SUSPECT


def route(
    loads: Sequence[Load], sticky: str | None, slack: int = STICKY_SLACK, avoid: Collection[str] = ()
) -> int | None:
    """Choose a replica for a request.

    READY replicas go before UPDATING ones, and those that have not failed at this request before those that have.
    Among them the last one of the episode (its caches hold the episode's images) unless it has more than `slack`
    requests above the least loaded; else the least loaded, the first of equals. One that is at its limit gets nothing:
    the request waits for it, even where another one is UPDATING.

    Returns:
        Index into `loads`, None when there is none now.
    """
    for state in (ReplicaState.READY, ReplicaState.UPDATING):
        there = [index for index, load in enumerate(loads) if load.state is state]
        usable = [index for index in there if loads[index].name not in avoid] or there
        if not usable:
            continue
        free = [index for index in usable if loads[index].in_flight < loads[index].limit]
        if not free:
            return None
        best = min(free, key=lambda index: loads[index].in_flight)
        for index in free:
            if loads[index].name == sticky and loads[index].in_flight - loads[best].in_flight <= slack:
                return index
        return best
    return None
