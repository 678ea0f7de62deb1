"""Agreement of a judge with evaluators: accuracy, Cohen's kappa, false successes, with intervals. Pure.

Intervals are Wilson's, of 95 %. That of kappa is the interval of the observed agreement, carried over with the
agreement by chance as it was found (Cohen, Educational and Psychological Measurement 20, 1960):

    kappa = (observed - chance) / (1 - chance)

so that it is never without width, also where all agree: a few equal answers prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_gym.utils.rates import wilson_interval

SUCCESS = 0.5
"""A value above it is a success."""
GOOD_KAPPA = 0.6
"""From here on agreement is "substantial" (Landis and Koch, Biometrics 33, 1977)."""
ENOUGH = 30
"""Episodes from which an agreement is taken seriously."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of `of` cases, with its interval. `value` is None if there are no cases."""

    value: float | None
    low: float
    high: float
    of: int

    @classmethod
    def counted(cls, count: int, of: int) -> Share:
        """Return the share of `count` in `of`."""
        low, high = wilson_interval(count, of)
        return cls(count / of if of else None, low, high, of)

    def shown(self) -> str:
        """Return it for people."""
        if self.value is None:
            return "unknown"
        return f"{self.value:.1%} (95 %: {self.low:.1%} to {self.high:.1%}, n = {self.of})"


@dataclass(frozen=True, slots=True)
class Agreement:
    """A judge's answers beside the evaluators'.

    Attributes:
        episodes: judged episodes that an evaluator scored.
        unreadable: share of answers that are no judgement.
        accuracy: share of episodes in which both say the same; an unreadable answer agrees with nobody.
        kappa: Cohen's, over readable answers; None where both know one kind of episode only.
        kappa_low: its interval.
        kappa_high: its interval.
        false_successes: of what the judge calls a success, the share that evaluators call a failure.
        missed: of what evaluators call a success, the share that the judge calls a failure.
        judged_successes: share of readable answers that are a success.
        successes: share of the evaluators' successes.
    """

    episodes: int
    unreadable: Share
    accuracy: Share
    kappa: float | None
    kappa_low: float
    kappa_high: float
    false_successes: Share
    missed: Share
    judged_successes: Share
    successes: Share

    @property
    def faults(self) -> list[str]:
        """Return why the judge should not be trained with, in sentences; none where nothing is known against it."""
        found = []
        if self.episodes < ENOUGH:
            found.append(f"it was compared on {self.episodes} episodes only: take {ENOUGH} or more")
        if (self.unreadable.value or 0.0) > 0.1:
            found.append(f"{self.unreadable.value:.0%} of its answers are no judgement")
        said = self.judged_successes
        if said.value in (0.0, 1.0) and self.successes.value not in (0.0, 1.0, None):
            found.append(f"it calls every episode a {'success' if said.value else 'failure'}: it tells nothing")
        if self.kappa is None:
            found.append("all episodes are of one kind: whether it tells successes from failures is unknown")
        elif self.kappa_low < GOOD_KAPPA:
            found.append(
                f"its kappa is {self.kappa:.2f} (95 %: {self.kappa_low:.2f} to {self.kappa_high:.2f}): it may be below "
                f"{GOOD_KAPPA:g}"
            )
        return found


def agreement(pairs: Sequence[tuple[float | None, float]]) -> Agreement:
    """Compare (the judge's value, None for what is no judgement; the evaluator's score) of episodes."""
    read = [(value > SUCCESS, score > SUCCESS) for value, score in pairs if value is not None]
    total, readable = len(pairs), len(read)
    same = sum(judged == real for judged, real in read)
    yes, real_yes = sum(judged for judged, _ in read), sum(real for _, real in read)
    wrong_yes, wrong_no = sum(j and not r for j, r in read), sum(r and not j for j, r in read)
    kappa = None
    low, high = -1.0, 1.0
    if readable:
        chance = (yes * real_yes + (readable - yes) * (readable - real_yes)) / readable**2
        if chance < 1.0:
            scale = 1.0 - chance
            kappa = (same / readable - chance) / scale
            low, high = (max(-1.0, (bound - chance) / scale) for bound in wilson_interval(same, readable))
    return Agreement(
        episodes=total,
        unreadable=Share.counted(total - readable, total),
        accuracy=Share.counted(same, total),
        kappa=kappa,
        kappa_low=low,
        kappa_high=high,
        false_successes=Share.counted(wrong_yes, yes),
        missed=Share.counted(wrong_no, real_yes),
        judged_successes=Share.counted(yes, readable),
        successes=Share.counted(sum(score > SUCCESS for _, score in pairs), total),
    )
