"""The report's plots as SVG text (matplotlib)."""

import io
from typing import Any

import matplotlib
import numpy as np

from dart_train.report.report_data import Curve, ReportData, TaskFigures

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend must be chosen first

INK, FAINT = "#1f2933", "#9aa5b1"
BEFORE = "#b8c4d0"
AFTER = "#2563eb"
CONSTANT = "#d97706"
PALETTE = ("#2563eb", "#059669", "#d97706", "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#dc2626")
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#e8ecf0",
    "axes.axisbelow": True,
    "svg.fonttype": "none",
}


def short_name(task_id: str) -> str:
    """The task's name without its suite."""
    return task_id.split("/", 1)[-1]


def svg(figure: Any) -> str:
    """Return a figure as SVG text, and close it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def learning_curves(curves: list[Curve], tasks: list[TaskFigures]) -> str:
    """One small panel per task: success over rollouts, the best constant click dashed, held-out points at both ends."""
    figures = {task.task_id: task for task in tasks}
    columns = min(3, max(1, len(curves)))
    rows = -(-len(curves) // columns)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(3.5 * columns, 2.3 * rows), squeeze=False, sharey=True)
        for axis in axes.flat[len(curves) :]:
            axis.set_visible(False)
        for index, (axis, curve) in enumerate(zip(axes.flat, curves, strict=False)):
            task = figures.get(curve.task_id)
            axis.plot(curve.rollouts, curve.success, color=PALETTE[index % len(PALETTE)], linewidth=1.8)
            if task and task.constant_click is not None:
                axis.axhline(task.constant_click, color=CONSTANT, linestyle="--", linewidth=1)
            end = curve.rollouts[-1] if len(curve.rollouts) else 1
            for rate, x in ((task and task.before, 0), (task and task.after, end)):
                if rate:
                    errors = [[max(0.0, rate.rate - rate.low)], [max(0.0, rate.high - rate.rate)]]
                    axis.errorbar([x], [rate.rate], yerr=errors, fmt="o", color=INK, markersize=4, capsize=3)
            axis.set_title(short_name(curve.task_id), fontsize=9.5, loc="left", color=INK)
            axis.set_ylim(-0.02, 1.02)
            axis.xaxis.set_major_locator(plt.MaxNLocator(4))
        figure.supxlabel("rollouts of the run", fontsize=9)
        figure.tight_layout()
        return svg(figure)


def before_after(tasks: list[TaskFigures]) -> str:
    """Horizontal bars per task with confidence intervals; the constant click as a tick."""
    rows = [task for task in tasks if task.before or task.after]
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.2, 0.42 * len(rows) + 0.9))
        for index, task in enumerate(rows):
            y = len(rows) - 1 - index
            for rate, offset, color in ((task.before, 0.18, BEFORE), (task.after, -0.18, AFTER)):
                if rate is None:
                    continue
                errors = [[max(0.0, rate.rate - rate.low)], [max(0.0, rate.high - rate.rate)]]
                axis.barh(y + offset, rate.rate, height=0.34, color=color)
                axis.errorbar([rate.rate], [y + offset], xerr=errors, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
            if task.constant_click is not None:
                axis.plot([task.constant_click] * 2, [y - 0.4, y + 0.4], color=CONSTANT, linewidth=1.6)
        axis.set_yticks(range(len(rows) - 1, -1, -1))
        axis.set_yticklabels([short_name(t.task_id) + ("" if t.trained else "  (not trained)") for t in rows])
        axis.set_xlim(0, 1.02)
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("success on held-out seeds")
        handles: list[Any] = [plt.Rectangle((0, 0), 1, 1, color=BEFORE), plt.Rectangle((0, 0), 1, 1, color=AFTER)]
        labels = ["before RL", "after RL"]
        if any(task.constant_click is not None for task in rows):
            handles.append(plt.Line2D([], [], color=CONSTANT))
            labels.append("best constant click")
        axis.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=3, frameon=False)
        return svg(figure)


def utilisation(data: ReportData) -> str:
    """Shares of desktops, engines and trainer over time."""
    series = data.utilisation
    if series is None:
        raise ValueError("no utilisation was recorded")
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.2, 2.4))
        for index, (name, values) in enumerate(series.values.items()):
            axis.plot(series.seconds, values, label=name, color=PALETTE[index], linewidth=1.5)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("seconds of training")
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=4, frameon=False)
        return svg(figure)


def turns(data: ReportData) -> str:
    """Where rollouts went, how long they and their groups were, success by length, entropy by step of the episode."""
    tasks = sorted({one.task_id for one in data.turns})
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(10.5, 5.0))
        share, steps, group, by_length, entropy, held_out = axes.flat
        places = sorted({one.upto for one in data.turns})
        found = {(one.task_id, one.upto): one for one in data.turns}
        below = np.zeros(len(places))
        for number, task in enumerate(tasks):
            color, own = PALETTE[number % len(PALETTE)], [found.get((task, place)) for place in places]
            counts = np.array([one.rollouts if one else 0 for one in own], np.float64)
            share.fill_between(places, below, below + counts, color=color, alpha=0.8, label=short_name(task))
            below += counts
            known = [one for one in own if one]
            steps.plot([one.upto for one in known], [one.steps for one in known], color=color, linewidth=1.2)
            group.plot([one.upto for one in known], [one.group for one in known], color=color, linewidth=1.2)
            by_length.plot([known[0].steps, known[-1].steps], [known[0].success, known[-1].success], color=FAINT)
            by_length.plot([known[-1].steps], [known[-1].success], "o", color=color, markersize=5)
        for label, values in data.entropies.items():
            entropy.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=f"{label} rollouts")
        held_out.plot(*zip(*data.held_out, strict=True), color=AFTER, marker="o")
        titles = (
            "rollouts",
            "mean steps",
            "mean size of groups",
            "success by mean steps, first to last",
            "entropy by step of the episode",
            "held-out success beside training",
        )
        for axis, title in zip(axes.flat, titles, strict=True):
            axis.set_title(title, fontsize=9, loc="left", color=INK)
        by_length.set_ylim(-0.02, 1.02)
        held_out.set_ylim(-0.02, 1.02)
        held_out.set_visible(bool(data.held_out))
        entropy.legend(frameon=False, fontsize=7)
        figure.legend(*share.get_legend_handles_labels(), loc="lower center", ncol=6, frameon=False, fontsize=7)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
        return svg(figure)


def staleness(counts: dict[int, int]) -> str:
    """How many versions behind the trained trajectories were."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(3.6, 2.2))
        keys = list(range(max(counts, default=0) + 1))
        axis.bar(keys, [counts.get(key, 0) for key in keys], color=AFTER, width=0.7)
        axis.set_xticks(keys)
        axis.set_xlabel("versions behind when trained")
        axis.set_ylabel("trajectories")
        axis.grid(axis="x", visible=False)
        return svg(figure)
