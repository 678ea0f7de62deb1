"""Prometheus's text of families of metrics that were made already, and of the process that serves them."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric


def render(families: Iterable[Metric]) -> bytes:
    """Return the text of the families, followed by this process's memory, processor time and descriptors."""
    registry = CollectorRegistry()
    registry.register(_Collected(tuple(families)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collected:
    """Families as a registry wants them."""

    def __init__(self, families: tuple[Metric, ...]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
