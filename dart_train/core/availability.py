"""What a service needs and may lose for a while: for how long it has been away, why, and when that is too long.

Invariants:
    - People are told twice: when it goes away, and when it is back. Tries in between are silent.
    - Several parts may notice the same loss ("sources"). It is over when each of them has succeeded again.
    - The pause before another try doubles up to a ceiling, for each source on its own.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dart_gym.utils.backoff import backoff
from dart_train.core.train_errors import DataError

_log = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Absence:
    """Something that is unavailable, as it is shown."""

    what: str
    seconds: float
    reason: str


class Availability:
    """One thing that may be away, with the words by which people say so, and that it is back. Thread-safe."""

    def __init__(
        self,
        what: str,
        unavailable_timeout_s: float,
        *,
        words: tuple[str, str] = ("is away", "is back"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what, self.words = what, words
        self.count = 0
        self._timeout, self._clock = unavailable_timeout_s, clock
        self._tries: dict[str, int] = {}
        self._since: float | None = None
        self._reason = ""
        self._lock = threading.Lock()

    def failed(self, error: object, source: str = "") -> float:
        """A try failed; return how long to wait before the next one of that source."""
        with self._lock:
            self._reason = " ".join(str(error).split()) or type(error).__name__
            tries = self._tries[source] = self._tries.get(source, 0) + 1
            began = self._since is None
            if began:
                self._since = self._clock()
                self.count += 1
        if began:
            limit = "" if math.isinf(self._timeout) else f" for {self._timeout:g} s"
            _log.warning("%s %s, will go on trying%s: %s", self.what, self.words[0], limit, self._reason)
        return backoff(tries, FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def succeeded(self, source: str = "") -> None:
        """A try of that source succeeded."""
        if not self._tries:  # without the lock: every call of a healthy service comes here
            return
        with self._lock:
            self._tries.pop(source, None)
            still_missed = bool(self._tries)
        if not still_missed:
            self.restored()

    def restored(self) -> None:
        """Note that it is back, for all callers."""
        if self._since is None:
            return
        with self._lock:
            self._tries.clear()
            if self._since is None:
                return
            seconds, self._since = self._clock() - self._since, None
        _log.warning("%s %s after %.1f s", self.what, self.words[1], seconds)

    @property
    def away(self) -> bool:
        """Return whether it is away now."""
        return self._since is not None

    @property
    def timed_out(self) -> bool:
        """Return whether it has been away for longer than anybody waits."""
        since = self._since
        return since is not None and self._clock() - since > self._timeout

    @property
    def reason(self) -> str:
        """Return what was said last."""
        return self._reason

    def state(self) -> Absence | None:
        """For people; None while it is there."""
        with self._lock:
            if self._since is None:
                return None
            return Absence(f"{self.what} {self.words[0]}", self._clock() - self._since, self._reason)


def insist(ask: Callable[[], T], unavailable_timeout_s: float) -> T:
    """Ask the database until it answers.

    Raises:
        DataError: if it does not answer for too long, or reports another error.
    """
    availability = Availability("the database", unavailable_timeout_s)
    while True:
        try:
            answer = ask()
        except DataError as error:
            if error.hopeless:
                raise  # it answers, and something else is wrong
            pause = availability.failed(error)
            if availability.timed_out:
                raise
        else:
            availability.restored()
            return answer
        time.sleep(pause)
