"""`dart-train bench efficiency`, the simulated half: the study as numbers, tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dart_lab.efficiency import study
from dart_lab.efficiency.simulation import COUPLED, DART, Outcome
from dart_lab.efficiency.study import Best, Length, Runner
from dart_lab.efficiency.workload import Setting
from dart_lab.reporting.report import Aim, Report

PAPER = {"coupled": (0.122, 0.296, 22.6), "DART": (0.677, 0.467, 43.6)}
"""Environment utilisation, rollout utilisation, actions per minute that the paper gives."""

RATIO_AIMS = {
    "env_utilisation_ratio": Aim(5.5, at_most=False),
    "throughput_ratio": Aim(1.9, at_most=False),
    "rollout_utilisation_ratio": Aim(1.6, at_most=False),
}
PARTS = "all parts"
SEARCH_STALENESS = 4
"""The default of `data.curation.max_staleness`: the search shows this project's settings, not the published ones."""


@dataclass(slots=True)
class Findings:
    """Everything that was simulated.

    Attributes:
        modes: the published setting in all modes.
        restarted: the same where an engine takes 150 s to take new weights, as DART's does.
        without: all parts, and each one left out.
        ladder: one part after the other.
        april: coupled batches by over-provisioning.
        sweeps: by axis and value.
        best: of the search.
    """

    modes: dict[str, Outcome]
    restarted: dict[str, Outcome]
    without: dict[str, Outcome]
    ladder: dict[str, Outcome]
    april: dict[float, Outcome]
    sweeps: dict[str, dict[float, dict[str, Outcome]]]
    best: Best


def simulate(length: Length, progress: Callable[[str], None], setting: Setting | None = None) -> Findings:
    """Answer all questions; minutes."""
    setting = setting or Setting()
    own = replace(setting, max_staleness=SEARCH_STALENESS)
    with Runner(length) as runner:
        progress("coupled, task-wise and DART in the published setting")
        modes = runner.named(setting, study.MODES)
        slow = replace(setting, model=replace(setting.model, update_s=150.0))
        restarted = runner.named(slow, study.MODES)
        progress("each part left out, and one after the other")
        fast = replace(own, train_s_per_action=own.train_s_per_action / study.FAST_TRAINER)
        without, ladder = runner.named(fast, study.WITHOUT), runner.named(fast, study.LADDER)
        progress("over-provisioned batches")
        april = runner.run([(setting, replace(COUPLED, over_provision=factor)) for factor in study.APRIL])
        progress("desktops, tails, engines")
        swept = study.sweeps(runner, setting)
        progress("the best ratio of desktops to engines")
        best = study.search(runner, own, replace(DART, batches_ahead=4.0, prefix_reuse=True))
    return Findings(modes, restarted, without, ladder, dict(zip(study.APRIL, april, strict=True)), swept, best)


def report(findings: Findings) -> Report:
    """The numbers, and what they should be."""
    coupled = findings.modes["coupled"]
    dart = findings.modes["DART"]
    best = findings.best
    keys = {f"sim.{name}": value for name, value in ratios(coupled, dart).items()}
    for name, outcome in findings.modes.items():
        prefix = f"sim.{name.lower().replace('-', '_')}"
        keys[f"{prefix}.env_utilisation"] = outcome.env_utilisation
        keys[f"{prefix}.rollout_utilisation"] = outcome.rollout_utilisation
        keys[f"{prefix}.actions_per_min"] = outcome.throughput
    keys["sim.dart.expired_share"] = expired_share(dart)
    keys |= {f"sim.restarted.{name}": v for name, v in _ratios_of(findings.restarted).items()}
    keys["sim.best_env_utilisation"] = best.outcome.env_utilisation
    keys["sim.best_desktops"], keys["sim.best_engines"] = best.desktops, best.engines
    keys["sim.best_expired_share"] = expired_share(best.outcome)
    plain, over = findings.april[study.APRIL[0]], findings.april[study.APRIL[-1]]
    for name, outcome in findings.without.items():
        if name != PARTS:
            part = name.removeprefix("without ").split(" (")[0].replace(" ", "_").replace("-", "_")
            keys[f"sim.adds.{part}"] = findings.without[PARTS].throughput / outcome.throughput
    keys["sim.april_batch_time_saved"] = 1 - over.batch_s / plain.batch_s
    keys["sim.april_cycle_time_saved"] = 1 - over.cycle_s / plain.cycle_s
    keys["sim.april_expired"], keys["sim.april_staleness"] = over.expired, over.staleness
    aims = {f"sim.{name}": aim for name, aim in RATIO_AIMS.items()}
    aims["sim.best_env_utilisation"] = Aim(0.85, at_most=False)
    aims["sim.april_batch_time_saved"] = Aim(0.2, at_most=False)
    aims["sim.april_expired"] = Aim(0, at_most=True)
    return Report("efficiency (simulated)", keys, aims)


def ratios(coupled: Outcome, dart: Outcome) -> dict[str, float]:
    """Return by which factor each figure is better. Pure."""
    return {
        "env_utilisation_ratio": dart.env_utilisation / coupled.env_utilisation,
        "throughput_ratio": dart.throughput / coupled.throughput,
        "rollout_utilisation_ratio": dart.rollout_utilisation / coupled.rollout_utilisation,
    }


def _ratios_of(modes: Mapping[str, Outcome]) -> dict[str, float]:
    return ratios(modes["coupled"], modes["DART"])


def expired_share(outcome: Outcome) -> float:
    """Rollouts that were played and then too old, as a share of all. Pure."""
    return outcome.expired / max(1.0, outcome.expired + outcome.trained + outcome.no_signal)


def print_tables(findings: Findings, console: Console) -> None:
    """The study for people."""
    table = outcome_table("published setting: 80 desktops, 4 engines, 8 x 8 rollouts a batch", findings.modes)
    for name, (environments, engines, actions) in PAPER.items():
        table.add_row(f"{name} in the paper", _percent(environments), _percent(engines), f"{actions:.1f}", *[""] * 4)
    console.print(table)
    console.print(outcome_table("the same, 150 s for new weights in an engine", findings.restarted))
    console.print(
        outcome_table("one part after the other (trainer four times as fast, window of 4 versions)", findings.ladder)
    )
    console.print(outcome_table("all parts, and each one left out (likewise)", findings.without))
    console.print(
        outcome_table("coupled, over-provisioned", {f"x {factor:g}": o for factor, o in findings.april.items()})
    )
    for axis, values in findings.sweeps.items():
        rows = {f"{value:g} {name}": outcome for value, found in values.items() for name, outcome in found.items()}
        console.print(outcome_table(axis, rows))
    best = findings.best
    name = f"{best.desktops} desktops, {best.engines} engines"
    console.print(outcome_table("best ratio that keeps the trainer fed", {name: best.outcome}))


def growth_table(found: Mapping[int, Mapping[int, Outcome]]) -> Table:
    """Steps per minute by desktops (rows) and engines; desktops and engines that are in use, a step's wait."""
    engines = next(iter(found.values()))
    table = Table(title="steps/min (desktops used, engines used, wait for a response)", box=None)
    for column in ("desktops", *(f"{count} engines" for count in engines)):
        table.add_column(column, justify="right", no_wrap=True)
    for desktops, row in found.items():
        cells = [
            f"{one.steps:,.0f} ({one.env_utilisation:.0%}, {one.rollout_utilisation:.0%}, {one.step_s:.0f} s)"
            for one in row.values()
        ]
        table.add_row(f"{desktops:,}", *cells)
    return table


def outcome_table(title: str, rows: Mapping[str, Outcome]) -> Table:
    """Outcomes below one another."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in ("desktops", "engines", "actions/min", "played/min", "expired", "batch wait", "cycle"):
        table.add_column(column, justify="right")
    for name, outcome in rows.items():
        table.add_row(
            name,
            _percent(outcome.env_utilisation),
            _percent(outcome.rollout_utilisation),
            f"{outcome.throughput:.1f}",
            f"{outcome.played:.0f}",
            _percent(expired_share(outcome)),
            f"{outcome.batch_s:.0f} s",
            f"{outcome.cycle_s:.0f} s",
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def write_plots(findings: Findings, directory: Path) -> list[Path]:
    """The same as pictures; returns their paths."""
    from dart_lab.efficiency import plots

    directory.mkdir(parents=True, exist_ok=True)
    return [
        plots.modes(findings.modes, PAPER, directory / "modes.png"),
        plots.ladder(findings.ladder, directory / "parts.png"),
        plots.sweeps(findings.sweeps, directory / "sweeps.png"),
        plots.search(findings.best, directory / "search.png"),
    ]
