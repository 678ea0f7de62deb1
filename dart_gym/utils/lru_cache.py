"""A bounded cache of what was read last, shared by threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class LRUCache(Generic[V]):
    """Keeps the values used last, which are never None, up to a total cost; without `cost` each costs 1."""

    def __init__(self, capacity: float, cost: Callable[[V], float] = lambda value: 1.0) -> None:
        self._capacity, self._cost = capacity, cost
        self._values: OrderedDict[str, V] = OrderedDict()
        self._total = 0.0
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._values

    def get(self, key: str, load: Callable[[str], V]) -> V:
        """Return the value of a key, loading it if it is not here (twice if two threads ask at once)."""
        found = self.find(key)
        if found is None:
            found = load(key)
            self.keep(key, found)
        return found

    def find(self, key: str) -> V | None:
        """The value of a key; None if it is not here."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def keep(self, key: str, value: V) -> None:
        """Keep a value; one that is here already stays."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._total += self._cost(value)
                while self._total > self._capacity and len(self._values) > 1:
                    _, oldest = self._values.popitem(last=False)
                    self._total -= self._cost(oldest)
