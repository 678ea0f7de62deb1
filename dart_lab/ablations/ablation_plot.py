"""The picture of an ablation: every variant's success at the end, and over the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dart_train.report.report_plots import INK, PALETTE, STYLE, plt, svg


def draw_ablation(
    rows: Mapping[str, Mapping[str, Any]], curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]], unit: str
) -> str:
    """Held-out success of every variant at the end with its interval, and over the training: mean and seeds."""
    with plt.rc_context(STYLE):
        figure, (bars, lines) = plt.subplots(1, 2, figsize=(10.5, 0.34 * len(rows) + 2.2), width_ratios=(1, 1.3))
        for place, (variant, row) in enumerate(rows.items()):
            color, y = PALETTE[place % len(PALETTE)], len(rows) - 1 - place
            if row["success"] is not None:
                low, high = row["success_interval"] or (row["success"], row["success"])
                bars.barh(y, row["success"], height=0.6, color=color)
                bars.errorbar(
                    [row["success"]],
                    [y],
                    xerr=[[row["success"] - low], [high - row["success"]]],
                    fmt="none",
                    ecolor=INK,
                    elinewidth=0.8,
                    capsize=2,
                )
            for curve in curves[variant]:
                lines.plot(*zip(*curve, strict=True), color=color, linewidth=0.7, alpha=0.2)
            mean = [np.mean(points, axis=0) for points in zip(*curves[variant], strict=False)]
            lines.plot(*zip(*mean, strict=True), color=color, ls=("-", "--")[place // len(PALETTE) % 2], label=variant)
        bars.set_yticks(range(len(rows) - 1, -1, -1), list(rows))
        bars.set_xlim(0, 1.02)
        bars.set_xlabel("success on held-out seeds")
        bars.grid(axis="y", visible=False)
        lines.set_ylim(-0.02, 1.02)
        lines.set_xlabel(unit)
        lines.legend(frameon=False, fontsize=7)
        figure.tight_layout()
        return svg(figure)
