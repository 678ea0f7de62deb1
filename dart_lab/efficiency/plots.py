"""Pictures of the efficiency benchmark. matplotlib without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from dart_lab.efficiency.simulation import Outcome
from dart_lab.efficiency.study import Best

COLOURS = {"coupled": "#b0413e", "task-wise": "#d9a441", "DART": "#2a6f97"}
PAPER_COLOUR = "#555555"


def modes(found: Mapping[str, Outcome], paper: Mapping[str, tuple[float, float, float]], path: Path) -> Path:
    """Three figures of each mode, with the paper's as dots."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    titles = ("environment utilisation, %", "rollout (engine) utilisation, %", "trained actions per minute")
    for index, (axes, title) in enumerate(zip(figure.subplots(1, 3), titles, strict=True)):
        values = [_three(outcome)[index] for outcome in found.values()]
        bars = axes.bar(list(found), values, color=[COLOURS[name] for name in found])
        axes.bar_label(bars, fmt="%.1f", padding=2)
        places = list(found)
        for name, figures in paper.items():
            value = figures[index] * (1 if index == 2 else 100)
            label = "paper" if name == "DART" else None
            axes.plot(places.index(name) + 0.3, value, "D", color=PAPER_COLOUR, markeredgecolor="white", label=label)
        axes.set_title(title, fontsize=10)
        axes.margins(y=0.15)
        _plain(axes)
        if index == 0:
            axes.legend(frameon=False, loc="upper left")
    return _save(figure, path)


def ladder(found: Mapping[str, Outcome], path: Path) -> Path:
    """Environment utilisation and throughput, one part after the other."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = list(found)[::-1]
    for axes, title, index in ((left, "environment utilisation, %", 0), (right, "trained actions per minute", 2)):
        bars = axes.barh(names, [_three(found[name])[index] for name in names], color=COLOURS["DART"])
        bars[-1].set_color(COLOURS["coupled"])
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.15)
        _plain(axes)
    return _save(figure, path)


def sweeps(found: Mapping[str, Mapping[float, Mapping[str, Outcome]]], path: Path) -> Path:
    """Environment utilisation (above) and throughput (below) over each axis."""
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    grid = figure.subplots(2, len(found), sharex="col", sharey="row")
    for column, (axis, values) in enumerate(found.items()):
        for row, index in enumerate((0, 2)):
            axes = grid[row][column]
            for name in ("coupled", "DART"):
                heights = [_three(outcomes[name])[index] for outcomes in values.values()]
                axes.plot(list(values), heights, "o-", color=COLOURS[name], label=name)
            axes.set_ylim(bottom=0)
            _plain(axes)
        grid[1][column].set_xlabel({"tail": "tail (sigma of the slowness)"}.get(axis, axis))
    grid[0][0].set_ylabel("environment\nutilisation, %")
    grid[1][0].set_ylabel("trained actions\nper minute")
    grid[0][0].legend(frameon=False)
    return _save(figure, path)


def search(best: Best, path: Path) -> Path:
    """Environment utilisation over desktops and engines; empty where the trainer is not fed."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    desktops, engines = (sorted({place[i] for place in best.table}) for i in (0, 1))
    values = [[100 * best.table[d, e] for d in desktops] for e in engines]
    shown = axes.imshow(values, origin="lower", aspect="auto", cmap="Blues", vmin=30, vmax=100)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            text = "-" if value != value else f"{value:.0f}"
            chosen = (desktops[x], engines[y]) == (best.desktops, best.engines)
            colour = "white" if value > 65 else "black"
            axes.text(x, y, text, ha="center", va="center", color=colour, weight="bold" if chosen else "normal")
    axes.set_xticks(range(len(desktops)), [str(n) for n in desktops])
    axes.set_yticks(range(len(engines)), [str(n) for n in engines])
    axes.set_xlabel("desktops")
    axes.set_ylabel("engines")
    axes.set_title("environment utilisation, %;  -: the trainer waits", fontsize=10)
    figure.colorbar(shown)
    return _save(figure, path)


def _three(outcome: Outcome) -> tuple[float, float, float]:
    return 100 * outcome.env_utilisation, 100 * outcome.rollout_utilisation, outcome.throughput


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    matplotlib.use("Agg")
    figure.savefig(path, dpi=110)
    return path
