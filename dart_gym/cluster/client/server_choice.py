"""Which of several servers a new session goes to: the least loaded one that answers.

Invariants:
    - Deciding is a function of values (`preference`); `ServerRecord` keeps them, the client asks.
    - What a server's last status could not know yet, the sessions that this client gave it since, counts as load.
    - A server that did not answer is asked last, and not at all for a while: longer after each failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dart_gym.cluster.wire.cluster_address import Address, parse_address
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.backoff import backoff

STATUS_AGE_S = 2.0  # a status may be so old when a session is placed by it
FIRST_REST_S, LAST_REST_S = 1.0, 30.0  # how long a server that failed is left alone, doubling


@dataclass(frozen=True, slots=True)
class Load:
    """What a server said about itself: desktops that it may run, those that are lent, sessions waiting for one."""

    desktops: int
    lent: int
    waiting: int

    @classmethod
    def of_status(cls, status: dict[str, Any]) -> Load:
        """From the result of the operation `status`."""
        phases = [desktop["phase"] for desktop in status["desktops"]]
        return cls(len(phases), sum(phase != "idle" for phase in phases), int(status["waiting"]))


@dataclass(slots=True, eq=False)
class ServerRecord:
    """What a client knows of one server.

    Attributes:
        address: where the server listens.
        load: its last status; None before the first one.
        asked_at: monotonic time of that.
        placed: sessions that this client opened there since.
        failures: how many times in a row it did not answer.
        down_until: monotonic time until which it is left alone.
    """

    address: Address
    load: Load | None = None
    asked_at: float = -math.inf
    placed: int = 0
    failures: int = 0
    down_until: float = -math.inf

    def answered(self, load: Load, now: float) -> None:
        """Note a status."""
        self.load, self.asked_at, self.placed = load, now, 0
        self.failures, self.down_until = 0, -math.inf

    def failed(self, now: float) -> None:
        """Note that it did not answer, or takes nobody."""
        self.failures, self.asked_at, self.placed = self.failures + 1, -math.inf, 0
        self.down_until = now + backoff(self.failures, FIRST_REST_S, LAST_REST_S)

    def is_down(self, now: float) -> bool:
        """Whether it failed so recently that nobody need ask."""
        return now < self.down_until

    def demand(self) -> float:
        """Desktops wanted per desktop, with one more session: above 1, that session has to wait.

        A server that never told its load counts as full.
        """
        if self.load is None:
            return 1.0 + self.placed
        return (self.load.lent + self.load.waiting + self.placed + 1) / max(1, self.load.desktops)


def room_elsewhere(servers: Sequence[ServerRecord], here: ServerRecord | None, now: float) -> ServerRecord | None:
    """A server with a free desktop for a session that waits in line on another one; None if there is none."""
    found = [server for server in preference(servers, now) if server is not here and not server.is_down(now)]
    return found[0] if found and found[0].load is not None and found[0].demand() <= 1.0 else None


def preference(servers: Sequence[ServerRecord], now: float) -> list[ServerRecord]:
    """The servers in the order in which a new session tries them. Equal ones stay in the given order."""
    return sorted(servers, key=lambda server: (server.is_down(now), server.demand()))


def server_urls(url: str) -> list[str]:
    """The URLs of a list that is separated by commas.

    Raises:
        ConfigurationError: one of them is no cluster's URL, or is there twice.
    """
    urls = [part.strip() for part in url.split(",")]
    for one in urls:
        parse_address(one)
    if len(set(urls)) < len(urls):
        raise ConfigurationError(f"a server is named twice in {url!r}")
    return urls


def combine(statuses: dict[str, dict[str, Any] | str]) -> dict[str, Any]:
    """One status of several servers' by URL, where a text says why a server gave none."""
    answers = {url: status for url, status in statuses.items() if isinstance(status, dict)}
    counters: dict[str, int] = {}
    for status in answers.values():
        for name, count in status["counters"].items():
            counters[name] = counters.get(name, 0) + count
    return {
        "desktops": [{**desktop, "server": url} for url, status in answers.items() for desktop in status["desktops"]],
        "waiting": sum(status["waiting"] for status in answers.values()),
        "sessions": sum(status["sessions"] for status in answers.values()),
        "uptime_s": max((status["uptime_s"] for status in answers.values()), default=0.0),
        "counters": counters,
        "servers": statuses,
    }
