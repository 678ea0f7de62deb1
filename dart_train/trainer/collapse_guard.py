"""Names a collapse of the policy while it happens, from the numbers of every step.

A sign is a number that has left the bounds that it had at the beginning, in the mean of a window of steps. Signs that
last for another window are a collapse. While there are any, no state is saved: the newest one is from before them, and
`on_collapse: return` goes back to it by restarting the trainer.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from dart_train.core.train_errors import TrainingError


class Collapsed(TrainingError):
    """The policy has collapsed; the trainer's next start resumes from the last good state."""


class CollapsedForGood(Collapsed):
    """The policy has collapsed, and the run ends."""

    hopeless = True


class AlarmStop(TrainingError):
    """An alarm that the run was told to end on was raised."""

    hopeless = True


class Sign(NamedTuple):
    """Bounds of one metric.

    Attributes:
        metric: as it is logged.
        words: for people.
        falls: share of its value at the beginning below which it is a sign; 0 for none.
        rises: a value above this multiple of the initial one is a sign.
        least: value below which a rise does not count.
    """

    metric: str
    words: str
    falls: float
    rises: float
    least: float


SIGNS = (
    Sign("entropy", "entropy", 0.02, 3.0, 0.3),
    Sign("completions/mean_length", "length of responses", 0.5, 2.0, 1.0),
    Sign("batch/unreadable", "share of episodes that end unreadable", 0.0, 3.0, 0.25),
    Sign("grad_norm", "norm of the gradient", 0.0, 20.0, 5.0),
)


class CollapseGuard:
    """Watches the steps of one life of a trainer.

    Args:
        window: steps that are averaged, and for which signs must last; 0 for no guard.

    Attributes:
        signs: what is out of bounds now, in words; "" for nothing.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._first: list[Mapping[str, float]] = []
        self._recent: deque[Mapping[str, float]] = deque(maxlen=max(1, window))
        self._lasted = 0
        self.signs = ""

    def look(self, report: Mapping[str, float]) -> str:
        """Take in the numbers of a step; returns the signs once they have lasted for a window, else ""."""
        if not self._window:
            return ""
        if len(self._first) < self._window:
            self._first.append(report)
            return ""
        self._recent.append(report)
        full = len(self._recent) == self._window
        found = [words for sign in SIGNS if full and (words := _out_of_bounds(sign, self._first, self._recent))]
        self.signs = ", ".join(found)
        self._lasted = self._lasted + 1 if found else 0
        return self.signs if self._lasted >= self._window else ""


def _out_of_bounds(sign: Sign, first: list[Mapping[str, float]], recent: deque[Mapping[str, float]]) -> str:
    """Return what is wrong with one number, in words; "" where nothing is or nothing is known."""
    before, now = _mean(sign.metric, first), _mean(sign.metric, recent)
    if before is None or now is None:
        return ""
    if now < sign.falls * before or now > max(sign.rises * before, sign.least):
        return f"{sign.words} went from {before:.3g} to {now:.3g}"
    return ""


def _mean(metric: str, reports: list[Mapping[str, float]] | deque[Mapping[str, float]]) -> float | None:
    known = [report[metric] for report in reports if metric in report]
    return sum(known) / len(known) if known else None
