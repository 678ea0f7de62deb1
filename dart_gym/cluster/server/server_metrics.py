"""A server's counts and times, and their text for Prometheus.

Invariants:
    - Recording is a few additions, because every step pays for it; all text is made when somebody asks.
    - Labels come from closed sets (operations, phases, codes, endings), never from clients' texts.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import Reply
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.prometheus_text import render

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PREFIX = "dart_gym"
BROKEN_BY = {"desktop": TerminalState.DESKTOP_KILLED, "environment": TerminalState.ENV_ERROR}


class Histogram:
    """Seconds in buckets."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it: (upper bound, observations up to it), the last one of all."""
        pairs, running = [], 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            running += count
            pairs.append((bound, float(running)))
        return pairs


class Metrics:
    """What happened since the server started.

    Attributes:
        phases: seconds of resets and steps by phase.
        traffic: bytes of frames: "received", "sent", and "shared" by memory.
    """

    def __init__(self) -> None:
        self.operations: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.waits = Histogram()
        self.errors: Counter[tuple[str, str]] = Counter()
        self.endings: Counter[tuple[str, str]] = Counter()
        self.phases: defaultdict[str, float] = defaultdict(float)
        self.traffic: Counter[str] = Counter()

    def record(self, op: str, seconds: float, reply: Reply) -> None:
        """Account for one executed operation."""
        self.operations[op].add(seconds)
        if reply.code is not None:
            self.errors[op, reply.code.value] += 1
            return
        timings = reply.result.get("timings")
        if timings is None:
            return
        phases = self.phases
        for phase, spent in timings.items():
            if phase != "total":
                phases[phase] += spent
        if op == "reset":
            self.waits.add(timings.get("queue", 0.0))
        if (terminal := reply.result["terminal"]) is not None:
            self.endings[str(terminal), str(reply.result["evaluation"][0])] += 1

    def text(self, status: Mapping[str, Any]) -> bytes:
        """Prometheus's text of these numbers and of a server's status."""
        return render([*self.families(), *_status_families(status)])

    def families(self) -> Iterator[Metric]:
        """Yield what was counted and timed since the server started."""
        seconds = HistogramMetricFamily(
            f"{PREFIX}_operation_seconds", "Seconds of an operation, waiting for a desktop included", labels=["op"]
        )
        for op, histogram in self.operations.items():
            seconds.add_metric([op], histogram.cumulative(), histogram.total)
        waits = HistogramMetricFamily(f"{PREFIX}_queue_wait_seconds", "Seconds that a reset waited for a free desktop")
        waits.add_metric([], self.waits.cumulative(), self.waits.total)
        yield seconds
        yield waits
        yield _counter("errors", "Error replies", ("op", "code"), self.errors)
        yield _counter("episodes_ended", "Episodes that ended", ("terminal", "evaluation"), self.endings)
        broken = GaugeMetricFamily(
            f"{PREFIX}_episodes_broken_share",
            "Share of the episodes that a program of their desktop ended, or their environment lost",
            labels=["by"],
        )
        ended = sum(self.endings.values())
        for by, terminal in BROKEN_BY.items():
            count = sum(count for (ending, _), count in self.endings.items() if ending == terminal)
            broken.add_metric([by], count / ended if ended else 0.0)
        yield broken
        phases = {(phase,): spent for phase, spent in self.phases.items()}
        yield _counter("phase_seconds", "Seconds of resets and steps by phase", ("phase",), phases)
        traffic = {(direction,): float(count) for direction, count in self.traffic.items()}
        yield _counter("frame_bytes", "Bytes of the sessions' frames", ("direction",), traffic)


def _status_families(status: Mapping[str, Any]) -> Iterator[Metric]:
    info = {"version": str(status["version"]), "protocol": str(frames.VERSION)}
    yield InfoMetricFamily(f"{PREFIX}_build", "Of the server", value=info)
    for name, text, value in (
        ("uptime_seconds", "Seconds since the server started", status["uptime_s"]),
        ("sessions", "Sessions that are open or may be resumed", status["sessions"]),
        ("waiting", "Sessions that wait for a free desktop", status["waiting"]),
        ("draining", "1 while the server takes no new sessions", status["draining"]),
    ):
        yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value=float(value))
    desktops = status["desktops"]
    phases = GaugeMetricFamily(f"{PREFIX}_desktops", "Slots by what their desktop does", labels=["phase"])
    for phase, count in sorted(Counter(desktop["phase"] for desktop in desktops).items()):
        phases.add_metric([phase], count)
    yield phases
    alive = sum(desktop["alive"] for desktop in desktops)
    yield GaugeMetricFamily(f"{PREFIX}_desktops_alive", "Slots with a living desktop", value=alive)
    limits = GaugeMetricFamily(f"{PREFIX}_desktop_limits", "What living desktops may use, in all", labels=["resource"])
    allowed: Counter[str] = Counter()
    for desktop in desktops:
        allowed.update(desktop["limits"] if desktop["alive"] else {})
    for resource, amount in sorted(allowed.items()):
        limits.add_metric([resource], float(amount))
    yield limits
    busy: Counter[tuple[str, ...]] = Counter()
    for desktop in desktops:
        busy.update({(operation,): seconds for operation, seconds in desktop["busy_s"].items()})
    yield _counter("busy_seconds", "Seconds that desktops worked, by operation", ("operation",), busy)
    events = {(name,): count for name, count in status["counters"].items()}
    yield _counter("events", "What the server's status counts", ("event",), events)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> CounterMetricFamily:
    """A family of counters; the keys of `values` are tuples, one text for each label."""
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family
