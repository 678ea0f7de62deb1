"""The figures of an overnight run as JSON, and one picture of it."""

from __future__ import annotations

import json
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib.figure import Figure

from tests.dart_train.overnight.overnight_memory import Growth, Sample, growth
from tests.dart_train.overnight.overnight_progress import Gap, Hit, gap_after, gaps, longest

MINUTE = 60.0
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a run between `begin` and `end` (Unix times).

    Attributes:
        begin: the first trained step.
        end: just before it was told to stop.
        recorded: times at which trajectories were recorded.
        trained: times at which the trainer had more steps than ever before.
        repeated_steps: steps that were trained again after a crash.
        hits: the faults.
        samples: memory and processor use of the modules.
        load: (time, runnable threads, share of the processors in use) of the machine.
        starts: of the launcher.
    """

    begin: float
    end: float
    recorded: Sequence[float]
    trained: Sequence[float]
    repeated_steps: int
    hits: Sequence[Hit]
    samples: Sequence[Sample]
    load: Sequence[tuple[float, float, float]]
    starts: int

    def by_module(self) -> dict[str, list[Sample]]:
        """The samples of each module."""
        found: dict[str, list[Sample]] = defaultdict(list)
        for sample in self.samples:
            if self.begin <= sample.t <= self.end:
                found[sample.module].append(sample)
        return dict(found)

    def growths(self) -> dict[str, Growth]:
        """How the memory of each module develops."""
        found = {name: growth(samples) for name, samples in sorted(self.by_module().items())}
        return {name: each for name, each in found.items() if each is not None}

    def longest_gap(self, times: Sequence[float]) -> Gap:
        """The longest stretch without an advance."""
        return longest(gaps(times, self.begin, self.end))


def figures(run: Measured) -> dict[str, Any]:
    """Everything that is worth telling of a run, for the file."""
    minutes = (run.end - run.begin) / MINUTE
    recorded, trained = run.longest_gap(run.recorded), run.longest_gap(run.trained)
    inside = [t for t in run.recorded if run.begin < t < run.end]
    return {
        "minutes": minutes,
        "kills": sum(hit.kind == "kill" for hit in run.hits),
        "stops": sum(hit.kind == "stop" for hit in run.hits),
        "launcher_starts": run.starts,
        "trajectories": len(inside),
        "trajectories_per_min": len(inside) / minutes,
        "new_steps": sum(run.begin < t < run.end for t in run.trained),
        "repeated_steps": run.repeated_steps,
        "longest_gap_recorded_s": recorded.seconds,
        "longest_gap_recorded_at_s": recorded.begin - run.begin,
        "longest_gap_trained_s": trained.seconds,
        "longest_gap_trained_at_s": trained.begin - run.begin,
        "throughput_late_over_early": _late_over_early(inside, run.begin, run.end),
        "memory_total_mb": totals(run),
        "memory": {name: asdict(each) for name, each in run.growths().items()},
        "cpu_s": {name: _cpu(samples) for name, samples in sorted(run.by_module().items())},
        "load_mean": mean([load for _, load, _ in run.load] or [0.0]),
        "cpu_in_use_mean": mean([share for _, _, share in run.load] or [0.0]),
        "by_victim": by_victim(run),
        "faults": [_told(run, index) for index in range(len(run.hits))],
    }


def by_victim(run: Measured) -> dict[str, dict[str, float]]:
    """For each module that was killed: how often, and the mean and longest gap of both kinds of progress after it."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for index, hit in enumerate(run.hits):
        found[hit.victim if hit.kind == "kill" else f"{hit.victim} stopped"].append(_told(run, index))
    return {
        name: {
            "hits": len(told),
            **{f"mean_{key}": mean(each[key] for each in told) for key in ("recorded_gap_s", "trained_gap_s")},
            **{f"max_{key}": max(each[key] for each in told) for key in ("recorded_gap_s", "trained_gap_s")},
        }
        for name, told in sorted(found.items())
    }


def _told(run: Measured, index: int) -> dict[str, Any]:
    hit = run.hits[index]
    until = run.hits[index + 1].t if index + 1 < len(run.hits) else run.end
    return {
        **asdict(hit),
        "t": hit.t - run.begin,
        "recorded_gap_s": gap_after(run.recorded, hit, until),
        "trained_gap_s": gap_after(run.trained, hit, until),
        "load": next((load for t, load, _ in run.load if t >= hit.t), None),
    }


def totals(run: Measured) -> dict[str, float]:
    """Median memory of everything in the first and the last third of the run, where every module is there."""
    names = set(run.by_module())
    moments: dict[float, dict[str, int]] = defaultdict(dict)
    for samples in run.by_module().values():
        for sample in samples:
            moments[sample.t][sample.module] = sample.bytes
    whole = [sum(sizes.values()) / 1e6 for _, sizes in sorted(moments.items()) if set(sizes) == names]
    if not whole:
        return {}
    third = max(1, len(whole) // 3)
    early, late = median(whole[:third]), median(whole[-third:])
    return {"early": early, "late": late, "late_over_early": late / early, "most": max(whole)}


def _late_over_early(times: Sequence[float], begin: float, end: float) -> float:
    third = (end - begin) / 3
    early, late = sum(t < begin + third for t in times), sum(t > end - third for t in times)
    return late / early if early else 0.0


def _cpu(samples: Sequence[Sample]) -> float:
    """Processor seconds of all lives of a module."""
    lives: dict[int, float] = {}
    for sample in samples:
        lives[sample.pid] = max(lives.get(sample.pid, 0.0), sample.cpu_s)
    return sum(lives.values())


def write(run: Measured, checks: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Write `overnight.json` and `overnight.png`; return the figures."""
    directory.mkdir(parents=True, exist_ok=True)
    told = {**figures(run), "checks": dict(checks)}
    (directory / "overnight.json").write_text(json.dumps(told, indent=1))
    draw(run, directory / "overnight.png")
    return told


def draw(run: Measured, path: Path) -> None:
    """Progress over time with the faults as lines, and the memory of each module."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    above, middle, below = figure.subplots(3, 1, sharex=True)
    edges = [run.begin + index * WINDOW_S / 4 for index in range(int((run.end - run.begin) / (WINDOW_S / 4)) + 1)]
    minutes = [(edge - run.begin) / MINUTE for edge in edges]
    times = sorted(run.recorded)
    rates = [bisect_right(times, edge) - bisect_right(times, edge - WINDOW_S / 4) for edge in edges]
    above.plot(minutes, [4 * rate for rate in rates], color="#2a6f97", drawstyle="steps-post")
    above.set_ylabel("trajectories per minute")
    middle.plot([(t - run.begin) / MINUTE for t in run.trained], range(1, len(run.trained) + 1), color="#d9a441")
    middle.set_ylabel("trained steps")
    for name, samples in sorted(run.by_module().items()):
        below.plot(
            [(sample.t - run.begin) / MINUTE for sample in samples],
            [sample.bytes / 1e6 for sample in samples],
            ".",
            markersize=2,
            label=name,
        )
    below.set_ylabel("private memory, MB")
    below.set_xlabel("minutes")
    figure.legend(frameon=False, ncols=9, fontsize=8, markerscale=4, loc="outside lower center")
    for axes in (above, middle, below):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        for hit in run.hits:
            colour = "#b0413e" if hit.kind == "kill" else "#777777"
            axes.axvline((hit.t - run.begin) / MINUTE, color=colour, linewidth=0.6, alpha=0.6)
    for hit in run.hits:
        place = ((hit.t - run.begin) / MINUTE, 1.01)
        above.annotate(hit.victim, place, xycoords=("data", "axes fraction"), rotation=90, fontsize=6, ha="center")
    figure.savefig(path, dpi=120)


def summary(told: Mapping[str, Any]) -> str:
    """The figures in a few lines, for people."""
    memory = ", ".join(f"{name} {100 * each['relative']:+.1f} %" for name, each in told["memory"].items())
    return (
        f"{told['minutes']:.1f} min, {told['kills']} kills, {told['stops']} stops; load {told['load_mean']:.1f}\n"
        f"{told['trajectories']} trajectories, {told['new_steps']} steps and {told['repeated_steps']} repeated\n"
        f"longest gap: {told['longest_gap_recorded_s']:.1f} s without a trajectory, "
        f"{told['longest_gap_trained_s']:.1f} s without a new step\n"
        f"growth of memory: {memory}\n"
        f"wrong: { {name: found for name, found in told['checks']['wrong'].items() if found} or 'nothing' }"
    )


def keep_logs(logs: Path, launcher: Path, directory: Path) -> None:
    """Copy what the modules said beside the report."""
    kept = directory / "logs"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(logs, kept)
    shutil.copy(launcher, kept / "launcher.log")
