"""Circuit breakers: a task that repeatedly loses its desktop is skipped for a while. Pure but for a clock.

Each task has a circuit breaker. Closed: its rollouts are dealt. Open, after `losses` rollouts in a row that the
environment lost: none is dealt. Half-open, after a pause that doubles each time: one rollout is dealt and decides.

Invariants:
    - Only losses of the environment count. A dead engine or a lost connection to the cluster says nothing about a task.
    - One rollout with a score closes the circuit, regardless of when it was begun.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dart_gym.utils.backoff import backoff


@dataclass(slots=True)
class _Circuit:
    losses: int = 0  # in a row
    times: int = 0  # opened since the last success
    until: float | None = None  # open until then; None while closed
    probing: bool = False
    reason: str = ""


class CircuitBreakers:
    """The circuit breakers of all tasks. A task is skipped for `first_s` seconds at first, `longest_s` at most."""

    def __init__(
        self,
        tasks: Iterable[str],
        *,
        losses: int = 6,
        first_s: float = 30.0,
        longest_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._circuits = {task: _Circuit() for task in tasks}
        self._losses = losses
        self._first = first_s
        self._longest = longest_s
        self._clock = clock

    def held(self) -> frozenset[str]:
        """Return the tasks that must not be dealt now."""
        now = self._clock()
        return frozenset(
            task
            for task, circuit in self._circuits.items()
            if circuit.until is not None and (circuit.probing or now < circuit.until)
        )

    @property
    def all_held(self) -> bool:
        """Return whether the circuit of every task is open or half-open."""
        return all(circuit.until is not None for circuit in self._circuits.values())

    def dealt(self, task: str) -> None:
        """Note that a rollout of a task begins; if the circuit is half-open, this rollout decides."""
        circuit = self._circuits[task]
        circuit.probing = circuit.until is not None

    def lost(self, task: str, reason: str) -> bool:
        """Note that the environment lost a rollout; return whether this opens the circuit (again)."""
        circuit = self._circuits[task]
        circuit.losses += 1
        circuit.reason = reason
        if circuit.losses < self._losses or (circuit.until is not None and not circuit.probing):
            return False  # the latter: begun before
        circuit.until = self._clock() + backoff(circuit.times + 1, self._first, self._longest)
        circuit.times += 1
        circuit.probing = False
        return True

    def won(self, task: str) -> bool:
        """Note that a rollout got a score; return whether this closes an open circuit."""
        circuit = self._circuits[task]
        ended = circuit.until is not None
        if circuit.losses:
            self._circuits[task] = _Circuit()
        return ended

    def undecided(self, task: str) -> None:
        """Note that a rollout ended in a way that says nothing about its task."""
        self._circuits[task].probing = False

    def shown(self) -> dict[str, str]:
        """Return the tasks whose circuit is open or half-open, with a description of their state."""
        return {
            task: f"{circuit.losses} losses in a row, {circuit.reason}"
            for task, circuit in self._circuits.items()
            if circuit.until is not None
        }
