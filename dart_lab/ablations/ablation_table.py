"""Results of an ablation's runs: one table and one picture. Values that were not measured are None, never 0.

Intervals are of the mean over seeds, by Student's t at 95 %. A difference from the base is paired by seed: runs of one
seed share model, tasks' seeds and evaluation. How soon a success is reached is a median. One seed has none.
"""

from __future__ import annotations

import statistics as numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dart_train.core.metrics_log import read_metrics
from dart_train.run.run_directory import RunDirectory, RunState, read_json, write_json, write_text

COLLAPSE = 0.2
"""A run has collapsed if it ends so far below the best of its evaluations, or if its trainer says so."""
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5 % quantiles of Student's t for 1 to 9 degrees of freedom."""
Interval = tuple[float, float] | None
Axis = Literal["rollouts", "minutes", "actions"]
"""What runs are compared by: how much of it a success took."""
_PLACES: dict[Axis, int] = {"rollouts": 0, "minutes": 1, "actions": 3}
"""Where it stands in a point of a curve; minutes as seconds."""
_UNITS: dict[Axis, str] = {
    "rollouts": "rollouts", "minutes": "minutes of training",
    "actions": "actions on desktops, replayed and shown ones included",
}  # fmt: skip
"""Its name below a picture."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run.

    Attributes:
        variant: what it is a run of.
        seed: of the run.
        success: on held-out seeds at the end, mean over tasks; None where it did not come so far.
        curve: (rollouts, seconds of training, success, actions) of the evaluations before, during and after it; runs
            of earlier measurements have no actions.
        ever: share of the tasks that succeeded at least once in training.
        collapsed: whether it lost what it had.
        crashed: why it did not end; "" where it did.
    """

    variant: str
    seed: int
    success: float | None
    curve: tuple[tuple[float, ...], ...]
    ever: float | None
    collapsed: bool
    crashed: str

    def points(self, by: Axis) -> list[tuple[float, float]]:
        """Return (how much, success) of its evaluations."""
        place = _PLACES[by]
        return [(point[place], point[2]) for point in self.curve if place < len(point)]

    def area(self, by: Axis) -> float | None:
        """Mean height of the curve over an axis; None for fewer than two points."""
        points = self.points(by)
        pairs = [
            (right[0] - left[0], (left[1] + right[1]) / 2) for left, right in zip(points, points[1:], strict=False)
        ]
        width = sum(step for step, _ in pairs)
        return sum(step * height for step, height in pairs) / width if width > 0 else None

    def reached(self, success: float, by: Axis) -> float | None:
        """How much an evaluation that first showed this success took (minutes in seconds); None for never."""
        return next((much for much, found in self.points(by) if found >= success), None)


def outcome_of(variant: str, seed: int, run: RunDirectory, crashed: str = "") -> Outcome:
    """Read a run directory, however far the run has come."""
    rows = [row for row in read_metrics(run.metrics("held_out")) if "success" in row]
    figures = read_json(run.figures, f"remove {run.root} and run again") if run.figures.exists() else {}
    state = RunState(run.root / "state.json").values["phases"].get("rl", {}).get("spans")
    first_row = rows[0]["t"] if rows else 0.0
    start = state[0][0] if state else first_row
    before, success = figures.get("success_before"), figures.get("success_after")
    curve = [(float(row["rollouts"]), row["t"] - start, row["success"], float(row["actions"])) for row in rows]
    if before is not None and (not curve or curve[0][0] > 0):
        curve.insert(0, (0.0, 0.0, before, 0.0))
    rollouts, seconds, actions = (float(figures.get(name) or 0) for name in ("rollouts", "rl_wall_s", "actions"))
    if success is not None and curve:
        last = curve[-1]
        curve.append((max(rollouts, last[0]), max(seconds, last[1]), success, max(actions, last[3])))
    named = any(row.get("collapse") == 1.0 for row in read_metrics(run.metrics("trainer")))
    fell = success is not None and bool(curve) and max(point[2] for point in curve) - success >= COLLAPSE
    return Outcome(variant, seed, success, tuple(curve), figures.get("tasks_ever_succeeded"), named or fell, crashed)


def mean_of(values: Sequence[float | None]) -> tuple[float | None, Interval]:
    """Mean of what is known, and its interval where two values are."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return (known[0] if known else None), None
    middle, quantile = numbers.mean(known), STUDENT[min(len(known) - 1, len(STUDENT)) - 1]
    half = quantile * numbers.stdev(known) / len(known) ** 0.5
    return middle, (middle - half, middle + half)


def summary(outcomes: Sequence[Outcome], *, base: str, by: Axis) -> list[dict[str, Any]]:
    """One row a variant, in the order of the first seed's."""
    by_variant: dict[str, list[Outcome]] = {}
    for one in outcomes:
        by_variant.setdefault(one.variant, []).append(one)
    reference = {one.seed: one for one in by_variant.get(base, [])}
    rows = []
    for variant, own in by_variant.items():
        paired = [(one, reference[one.seed]) for one in own if one.seed in reference and variant != base]
        gaps = [_gap(one.success, other.success) for one, other in paired]
        areas = [_gap(one.area(by), other.area(by)) for one, other in paired]
        row: dict[str, Any] = {"variant": variant, "seeds": sum(one.success is not None for one in own)}
        measured: Mapping[str, Sequence[float | None]] = {
            "success": [one.success for one in own],
            "difference": gaps,
            "area": [one.area(by) for one in own],
            "area_difference": areas,
            "ever": [one.ever for one in own],
        }
        for name, values in measured.items():
            row[name], row[f"{name}_interval"] = mean_of(values)
        for name, success in (("to_60", 0.6), ("to_80", 0.8)):  # a run that never came there is later than all others
            reached = [one.reached(success, by) for one in own]
            median = numbers.median(float("inf") if value is None else value for value in reached)
            row[name] = median if median < float("inf") else None
        row["collapsed"] = sum(one.collapsed for one in own)
        row["crashed"] = {f"seed {one.seed}": one.crashed for one in own if one.crashed}
        rows.append(row)
    return rows


def _gap(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def markdown(rows: Sequence[Mapping[str, Any]], *, by: Axis) -> str:
    """The table."""
    unit = "s" if by == "minutes" else by
    shown = {"success": "success", "difference": "against base", "area": "area", "area_difference": "against base"}
    head = ["variant", "seeds", *shown.values(), f"{unit} to 60 %", "to 80 %", "tasks ever", "collapsed", "crashed"]
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for row in rows:
        reached = ("–" if row[name] is None else f"{row[name]:,.0f}" for name in ("to_60", "to_80"))
        cells = [row["variant"], str(row["seeds"]), *(_percent(row, name) for name in shown), *reached]
        cells += [_percent(row, "ever"), str(row["collapsed"]), str(len(row["crashed"]))]
        lines.append(" | ".join(cells))
    crashes = [f"- {row['variant']}, {run}: {why}" for row in rows for run, why in row["crashed"].items()]
    return "\n".join([*(f"| {line} |" for line in lines), *(["", *crashes] if crashes else []), ""])


def _percent(row: Mapping[str, Any], name: str) -> str:
    value, interval = row[name], row[f"{name}_interval"]
    if value is None:
        return "–"
    sign = "+" if "difference" in name else ""
    middle, *ends = (f"{round(100 * (n if sign else min(max(n, 0), 1))):{sign}d}" for n in (value, *(interval or ())))
    return f"{middle} %{f' ({ends[0]} to {ends[1]})' if ends else ''}"


def as_values(outcomes: Sequence[Outcome], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything as plain values, for a JSON file."""
    return {"variants": list(rows), "runs": [asdict(one) for one in outcomes]}


def write(root: Path, outcomes: Sequence[Outcome], *, base: str, by: Axis) -> str:
    """Write `ablation.md`, `ablation.json` and `ablation.svg`; returns the table."""
    from dart_lab.ablations.ablation_plot import draw_ablation  # matplotlib takes a second

    rows = summary(outcomes, base=base, by=by)
    table = markdown(rows, by=by)
    write_text(root / "ablation.md", table)
    write_json(root / "ablation.json", as_values(outcomes, rows))
    curves: dict[str, list[list[tuple[float, float]]]] = {row["variant"]: [] for row in rows}
    for one in outcomes:
        if one.curve:
            scale = 60.0 if by == "minutes" else 1.0
            curves[one.variant].append([(much / scale, found) for much, found in one.points(by)])
    picture = draw_ablation({row["variant"]: row for row in rows}, curves, _UNITS[by])
    write_text(root / "ablation.svg", picture)
    return table
