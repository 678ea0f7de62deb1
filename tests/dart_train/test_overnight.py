"""An hour of the quick start in which everything is killed in turn, and what it comes to.

`make overnight` runs it alone. DART_OVERNIGHT_MINUTES, DART_OVERNIGHT_INTERVAL (seconds between two faults),
DART_OVERNIGHT_SEED and DART_OVERNIGHT_REPORT (a directory) change it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dart_train.config.run_config import load_config
from dart_train.core.metrics_log import read_metrics
from dart_train.processes.process_context import open_data
from tests.dart_train.overnight import overnight_checks as checks
from tests.dart_train.overnight import overnight_report
from tests.dart_train.overnight.overnight_faults import VICTIMS, Fault, pick_desktop_process, plan_faults
from tests.dart_train.overnight.overnight_memory import WARM_UP_S, Sample, Sampler, growth
from tests.dart_train.overnight.overnight_progress import Hit, advances, gap_after, gaps, longest
from tests.dart_train.overnight.overnight_run import INTERRUPTED, ROOT, OvernightRun, overnight_run

LONGEST_GAP_S = 60.0
MOST_GROWTH = 0.10
SETUP_S = 900.0
VICTIM_S = 180.0
"""A victim that was hit just before gets so long to be there again."""


@dataclass(frozen=True)
class Settings:
    """How long, how often, and where the report goes."""

    seconds: float
    every_s: float
    seed: int
    report: Path

    @classmethod
    def from_environment(cls) -> Settings:
        """As the module says."""
        return cls(
            seconds=60.0 * float(os.environ.get("DART_OVERNIGHT_MINUTES", "60")),
            every_s=float(os.environ.get("DART_OVERNIGHT_INTERVAL", "120")),
            seed=int(os.environ.get("DART_OVERNIGHT_SEED", "0")),
            report=Path(os.environ.get("DART_OVERNIGHT_REPORT", ROOT / "runs" / "overnight-report")),
        )


def carry_out(run: OvernightRun, fault: Fault, source: random.Random) -> Hit:
    """Hit the victim, once it is there; a launcher is started again by the same command."""
    began = time.monotonic()
    process: psutil.Process | None = None
    while process is None:
        modules = run.modules()
        process = modules.get("cluster" if fault.victim == "desktop" else fault.victim)
        if process is not None and fault.victim == "desktop":
            process = pick_desktop_process(process, source)
        if process is None:
            assert not (reason := run.ended()), reason
            assert time.monotonic() < began + VICTIM_S, f"{fault.victim} did not come back within {VICTIM_S:.0f} s"
            time.sleep(0.2)
    waited, now = time.monotonic() - began, time.time()
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL)
        if fault.victim == "launcher":
            assert run.launcher is not None
            run.launcher.wait()
            run.start()
    print(f"{time.strftime('%T')} {fault.kind} {fault.victim} (process {process.pid})", flush=True)
    return Hit(now, fault.victim, fault.kind, fault.for_s, process.pid, waited)


def go_on(process: psutil.Process) -> None:
    """Let a process that stands still go on, if it is still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def wait_while_running(run: OvernightRun, sampler: Sampler, until: float) -> None:
    """Let time pass, as long as all is well."""
    while time.monotonic() < until:
        assert not (reason := run.ended()), reason
        if sampler.failure is not None:
            raise sampler.failure
        time.sleep(min(0.5, max(0.0, until - time.monotonic())))


def hit_by_plan(run: OvernightRun, sampler: Sampler, settings: Settings) -> list[Hit]:
    """Carry out the plan to its end."""
    source = random.Random(settings.seed)
    began = time.monotonic()
    hits = []
    for fault in plan_faults(settings.seconds, settings.every_s, settings.seed):
        wait_while_running(run, sampler, began + fault.at_s)
        hit = carry_out(run, fault, source)
        hits.append(hit)
        if fault.kind == "stop":
            wait_while_running(run, sampler, time.monotonic() + fault.for_s)
            with contextlib.suppress(psutil.NoSuchProcess):
                go_on(psutil.Process(hit.pid))
    wait_while_running(run, sampler, began + settings.seconds)
    return hits


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(4 * 3600)
def test_an_hour_of_kills():
    settings = Settings.from_environment()
    with overnight_run() as run:
        run.start()
        run.wait_until(lambda: run.trained_steps() >= 3, SETUP_S, "the first trained steps")
        with Sampler(run) as sampler:
            begin = time.time()
            hits = hit_by_plan(run, sampler, settings)
            end, steps = time.time(), run.trained_steps()
            run.wait_until(lambda: run.trained_steps() > steps, 2 * LONGEST_GAP_S, "a step after the last fault")
        status = run.interrupt()
        wrong = {"left": checks.left_behind(run, sampler.seen)}
        config = load_config(run.directory.config)
        with open_data(config, run.directory) as data:
            kills = sum(hit.kind == "kill" and hit.victim in ("rollout", "launcher") for hit in hits)
            wrong["store"], stored = checks.wrong_in_store(data, kills)
            wrong["training"], trained = checks.wrong_in_training(data, run.directory.trainer)
            wrong["versions"], versions = checks.wrong_versions(data, config.data.curation.max_staleness or 10**9)
            recorded = checks.recorded_at(data)
        lines = [(line["t"], line["step"]) for line in read_metrics(run.directory.metrics("trainer"))]
        new = advances(lines)
        measured = overnight_report.Measured(
            begin, end, recorded, new, len(lines) - len(new), hits, sampler.samples, sampler.load, run.starts
        )
        found = {"wrong": wrong, "store": stored, "training": trained, "versions": versions, "status": status}
        told = overnight_report.write(measured, found, settings.report)
        overnight_report.keep_logs(run.directory.logs, run.log, settings.report)
        print(overnight_report.summary(told), flush=True)
    assert status == INTERRUPTED
    assert not any(wrong.values()), wrong
    assert told["longest_gap_recorded_s"] <= LONGEST_GAP_S, told["faults"]
    assert told["longest_gap_trained_s"] <= LONGEST_GAP_S, told["faults"]
    for name, grown in measured.growths().items():
        assert grown.relative <= MOST_GROWTH, (name, grown)
    assert told["memory_total_mb"]["late_over_early"] <= 1 + MOST_GROWTH, told["memory_total_mb"]


# The measuring itself


def test_every_module_is_hit_once_before_any_is_hit_again():
    faults = plan_faults(3600, 120, seed=1)
    assert len(faults) == 29
    assert {fault.victim for fault in faults[:8]} == set(VICTIMS) == {fault.victim for fault in faults[8:16]}
    assert all(index * 120 + 30 <= fault.at_s <= index * 120 + 90 for index, fault in enumerate(faults))
    assert plan_faults(3600, 120, seed=1) == faults != plan_faults(3600, 120, seed=2)
    assert {fault.kind for fault in faults} == {"kill", "stop"}


def test_repeated_steps_are_no_progress():
    assert advances([(1.0, 1), (2.0, 2), (3.0, 1), (4.0, 2), (5.0, 3)]) == [1.0, 2.0, 5.0]


def test_the_longest_gap_includes_the_edges():
    assert longest(gaps([3.0, 4.0], 0.0, 10.0)).seconds == 6.0
    assert longest(gaps([], 0.0, 10.0)).seconds == 10.0
    assert longest(gaps([1.0, 2.0, 12.0], 0.0, 10.0)).begin == 2.0


def test_a_gap_is_charged_to_the_hit_in_it():
    hit = Hit(10.0, "data", "kill", 0.0, 1, 0.0)
    assert gap_after([9.0, 15.0, 16.0, 40.0], hit, until=20.0) == 6.0


def lives(slope: float, levels: tuple[float, ...]) -> list[Sample]:
    """Samples of a module with one life per level, each of ten minutes."""
    return [
        Sample(1000.0 * life + age, "m", life, age, int(level + slope * age), 0.0)
        for life, level in enumerate(levels)
        for age in range(0, 600, 10)
    ]


def test_growth_is_found_within_lives_whatever_their_levels():
    found = growth(lives(1e5, (1e9, 5e8, 8e8)))
    assert found is not None
    assert found.mb_per_hour == pytest.approx(360, rel=0.01)
    assert found.relative == pytest.approx(1e5 * (590 - WARM_UP_S) / (found.mean_mb * 1e6), rel=0.01)


def test_kills_do_not_hide_growth_and_do_not_feign_it():
    flat = growth(lives(0.0, (1e9, 5e8)))
    assert flat is not None and abs(flat.relative) < 1e-9
    assert growth(lives(0.0, (1e9,))[:5]) is None
