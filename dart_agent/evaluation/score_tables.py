"""Scores as people read them, and as plain JSON values. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Column, Table

from dart_agent.evaluation.comparison import MIN_TASKS, Comparison
from dart_agent.evaluation.scores import GroupScore, TaskScore, total_score
from dart_gym.utils.shown_text import as_cell

_INTERVAL = "95 %\ninterval"
UNREAD = "the last response could not be read, which ends an episode with score 0:"


def score_table(scores: Sequence[TaskScore]) -> Table:
    """One row per task; with what an episode cost, where hosted models played."""
    cost = next((name for name in ("usd", "tokens") if any(spent(score.usage)[name] for score in scores)), None)
    names = ["episodes", "success", _INTERVAL, "mean\nscore", "steps", "lost"]
    table = _table("task", [*names, *([f"{cost}, all\nepisodes"] if cost else [])])
    for score in [*scores, total_score(scores)] if len(scores) > 1 else scores:
        interval = _interval((score.low, score.high) if score.episodes else None)
        mean, steps = _number(score.mean_score, 2), _number(score.mean_steps, 1)
        row = [str(score.episodes), _percent(score.rate), interval, mean, steps, str(score.lost)]
        table.add_row(as_cell(score.task_id), *row, *([f"{spent(score.usage)[cost]:,.4g}"] if cost else []))
    return table


def _table(first: str, numbers: Sequence[str]) -> Table:
    """Numbers and their names are whole in 80 columns; what stands before them goes on in the next line."""
    columns = [Column(name, justify="right", no_wrap=True) for name in numbers]
    return Table(Column(first, overflow="fold"), *columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def spent(usage: Mapping[str, float]) -> dict[str, float]:
    """Return what hosted models took: "usd", and "tokens" of all kinds."""
    return {
        "usd": usage.get("usd", 0.0),
        "tokens": sum(usage.values()) - usage.get("usd", 0) - usage.get("requests", 0),
    }


def group_table(groups: Sequence[GroupScore]) -> Table:
    """One row per application."""
    k = groups[0].k
    names = ["tasks", "episodes", "pass@1", _INTERVAL, *([f"pass@{k}", _INTERVAL] if k > 1 else [])]
    table = _table("app", [*names, "lost"])
    for group in groups:
        row = [str(group.tasks), str(group.total.episodes), _percent(group.pass_1)]
        row.append(_interval(group.pass_1_interval if group.tasks else None))
        if k > 1:
            short = f"\nof {group.pass_k_tasks} tasks" if 0 < group.pass_k_tasks < group.tasks else ""
            row += [_percent(group.pass_k) + short, _interval(group.pass_k_interval)]
        table.add_row(as_cell(group.name), *row, str(group.total.lost))
    return table


def ending_lines(total: TaskScore) -> list[str]:
    """Return how episodes ended, and what lost those that do not count."""
    lines = [f"ended as: {_counted(total.terminals)}"]
    if total.lost:
        by = ", ".join(f"{count} by the {name}" for name, count in _by_number(total.lost_by))
        lines.append(f"lost, and in no rate: {by}; the same command with --out plays them again")
    return lines


def reason_lines(reasons: Mapping[str, int], heading: str = "lost because:", most: int = 3) -> list[str]:
    """Return the most frequent reasons for lost episodes, or for another end of theirs, one line each."""
    lines = [f"  {count} x {' '.join(reason.split())}" for reason, count in _by_number(reasons)[:most]]
    more = len(reasons) - most
    return [*([heading] if lines else []), *lines, *([f"  and {more} other reasons"] if more > 0 else [])]


def comparison_lines(comparison: Comparison, name_a: str, name_b: str) -> list[str]:
    """A comparison in words."""
    c = comparison
    low, high = c.interval
    verdict = c.verdict.replace("A ", f"{name_a} ").replace("B ", f"{name_b} ")
    lines = [
        f"{verdict}: {name_a} {_percent(c.rate_a, 1)}, {name_b} {_percent(c.rate_b, 1)}",
        f"difference {100 * c.difference:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}, "
        f"paired test p = {c.p_value:.3g}",
        f"{c.pairs} pairs ({c.unit}s): {name_b} better in {c.better_b}, {name_a} in {c.better_a}, "
        f"alike in {c.pairs - c.better_a - c.better_b}",
    ]
    if c.left_out:
        lines.append(f"{c.left_out} episodes left out: lost, or played by one of the two only")
    if c.unit == "episode":
        lines.append(f"fewer than {MIN_TASKS} common tasks: this says something about these tasks, not about others")
    return lines


def score_row(score: TaskScore) -> dict[str, Any]:
    """The score of a task as JSON."""
    return {
        "task_id": score.task_id,
        "episodes": score.episodes,
        "successes": score.successes,
        "rate": finite(score.rate),
        "low": score.low,
        "high": score.high,
        "mean_score": finite(score.mean_score),
        "mean_steps": finite(score.mean_steps),
        "lost": score.lost,
        "terminals": score.terminals,
        "lost_by": score.lost_by,
        "usage": score.usage,
    }


def group_row(group: GroupScore) -> dict[str, Any]:
    """The score of an application as JSON."""
    return {
        "app": group.name,
        "tasks": group.tasks,
        "episodes": group.total.episodes,
        "pass_1": finite(group.pass_1),
        "pass_1_interval": group.pass_1_interval,
        "k": group.k,
        "pass_k": finite(group.pass_k),
        "pass_k_interval": group.pass_k_interval,
        "pass_k_tasks": group.pass_k_tasks,
        "terminals": group.total.terminals,
        "lost_by": group.total.lost_by,
    }


def finite(value: float) -> float | None:
    """A number that JSON has; None for NaN."""
    return value if math.isfinite(value) else None


def _percent(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.{digits}f} %"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{100 * interval[0]:.0f} - {100 * interval[1]:.0f} %"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in _by_number(counts)) or "none"


def _by_number(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
