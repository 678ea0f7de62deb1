"""Alarms of the trainer: numbers of a step that say training is going wrong although nothing fails. Pure; no torch.

An alarm is raised when the mean of its metric over a window of steps crosses its limit, and cleared when the mean is
back. The trainer writes `alarm/<name>: 1` into its metrics while an alarm is raised, and the log, the terminal,
`dart-train status` and the report show it. `trainer.stop_on` names the alarms that end the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dart_train.core.tolerances import HALF_MEAN

AlarmName = Literal["engine_gap", "policy_gap", "importance", "weights", "signal", "dropped", "teacher", "collapse"]
PREFIX = "alarm/"
ENGINE_GAP_HALF, ENGINE_GAP_EXACT = HALF_MEAN, 0.01
"""Largest mean difference between the engine's and the trainer's log-probabilities of the same weights, in nats, where
one of them computes in half precision, and where both compute in float32. `dart-train parity` allows no more."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm.

    Attributes:
        name: its key in the metrics and in `trainer.stop_on`.
        metric: the number that is averaged.
        limit: the value that its mean must not cross.
        above: whether it is raised above the limit; otherwise below it.
        meaning: what is wrong, as a clause.
        advice: what to do next.
    """

    name: AlarmName
    metric: str
    limit: float
    above: bool
    meaning: str
    advice: str

    def crossed(self, mean: float) -> bool:
        """Return whether a mean raises the alarm; NaN does."""
        return not (mean <= self.limit if self.above else mean >= self.limit)

    def sentence(self, mean: float) -> str:
        """Return the alarm with its figures."""
        relation = "above" if self.above else "below"
        return f"{self.meaning} ({self.metric} is {mean:.3g}, {relation} {self.limit:g}): {self.advice}"


ALARMS = (
    Alarm(
        "engine_gap", "gap/engine/mean", ENGINE_GAP_HALF, True,
        "the engine's log-probabilities are not those of the weights that it serves",
        "compare them with dart-train parity; an engine with other weights, sampling settings or reported numbers "
        "teaches the wrong thing",
    ),
    Alarm(
        "policy_gap", "sampling/sampling_logp_difference/mean", 1.0, True,
        "rollouts were sampled with other log-probabilities than the trained policy has",
        "if staleness is low, compare engine and trainer with dart-train parity; otherwise lower learning_rate or "
        "data.curation.max_staleness",
    ),
    Alarm(
        "importance", "sampling/importance_sampling_ratio/mean", 0.2, False,
        "importance weights shrink every gradient",
        "look at gap/engine and staleness: rollouts are too old, or the engine reports wrong log-probabilities",
    ),
    Alarm(
        "weights", "update/relative", 1e-8, False,
        "the weights hardly change",
        "raise learning_rate, or look for gradients that are zero (grad_norm, frac_reward_zero_std)",
    ),
    Alarm(
        "signal", "frac_no_signal", 0.9, True,
        "almost all groups have equal rewards, so that they teach nothing",
        "choose tasks that succeed sometimes, raise rollout.group_size, fill the experience pool, or set teacher.kind",
    ),
    Alarm(
        "dropped", "dropped/share", 0.5, True,
        "most sampled steps cannot be trained on",
        "the metrics dropped/* count the reasons; too_long: raise the model's positions or shorten prompts",
    ),
    Alarm(
        "teacher", "teacher/answered", 0.5, False,
        "most episodes that the teacher was to teach come without a lesson",
        "the rollout service's log says why: is its engine running, and have the tasks an oracle?",
    ),
    Alarm(
        "collapse", "collapse", 0.99, True,
        "the policy has collapsed",
        "lower learning_rate, or set trainer.on_collapse: return",
    ),
)  # fmt: skip


def alarm_named(name: str) -> Alarm:
    """Return an alarm by its name."""
    return next(alarm for alarm in ALARMS if alarm.name == name)


def raised_in(row: Mapping[str, Any]) -> list[Alarm]:
    """Return the alarms that a line of the trainer's metrics says are raised."""
    return [alarm for alarm in ALARMS if row.get(f"{PREFIX}{alarm.name}")]


def count_steps(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return by alarm the number of steps during which it was raised; alarms that never were are left out."""
    counts: dict[str, int] = {}
    for row in rows:
        for alarm in raised_in(row):
            counts[alarm.name] = counts.get(alarm.name, 0) + 1
    return counts


class AlarmBoard:
    """The alarms of one life of a trainer.

    Args:
        window: steps that are averaged; alarms are not raised before that many have been seen. 0 for no alarms.
        limits: limits that replace those of `ALARMS`, by name.

    Attributes:
        raised: the sentence of each alarm that is raised now, by name.
    """

    def __init__(self, window: int, limits: Mapping[str, float] | None = None) -> None:
        self._window = window
        self._limits = dict(limits or {})
        self._seen: dict[str, deque[float]] = {alarm.name: deque(maxlen=max(window, 1)) for alarm in ALARMS}
        self.raised: dict[str, str] = {}

    def look(self, report: Mapping[str, float]) -> tuple[list[str], list[str]]:
        """Take in the numbers of a step and return the names of alarms that were raised by it, and cleared by it."""
        if not self._window:
            return [], []
        before = set(self.raised)
        self.raised = {}
        for alarm in self._alarms():
            seen = self._seen[alarm.name]
            if alarm.metric in report or alarm.name == "collapse":  # which is in the numbers only while there is one
                seen.append(report.get(alarm.metric, 0.0))
            if len(seen) == self._window and alarm.crossed(mean := sum(seen) / len(seen)):
                self.raised[alarm.name] = alarm.sentence(mean)
        return [name for name in self.raised if name not in before], sorted(before - set(self.raised))

    def _alarms(self) -> Sequence[Alarm]:
        """The alarms with this board's limits; a limit that is not in `ALARMS` would be a mistake of ours."""
        return [
            Alarm(a.name, a.metric, self._limits.get(a.name, a.limit), a.above, a.meaning, a.advice) for a in ALARMS
        ]
