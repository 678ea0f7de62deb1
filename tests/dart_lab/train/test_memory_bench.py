"""What trainers take of memory is what is planned, and ranks hold no more of a model than their parts."""

from __future__ import annotations

import pytest

from dart_lab.train.memory_bench import CASES, SIZES, compare, host_copy, measure

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(600)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "size", [pytest.param(name, marks=[] if name == "8m" else [pytest.mark.slow]) for name in SIZES]
)
def test_the_planned_peak_is_the_measured_one(size, ranks, tmp_path):
    found = measure(size, ranks, tmp_path)
    assert 0.85 <= found.ratio <= 1.15, f"planned {found.planned.peak}, measured {found.peak}: {found.planned.causes}"


@pytest.mark.slow
def test_the_benchmark_finds_the_plan_right_with_every_switch():
    report = compare("8m", print)
    assert report.aims.keys() == {f"{case}_planned_off" for case in CASES}
    missed = {name: report.keys[name] for name, aim in report.aims.items() if not aim.met(report.keys[name])}
    assert not missed, report.keys


def test_a_rank_never_has_more_of_a_model_than_its_parts(tmp_path):
    taken, parts = host_copy(2, tmp_path)
    assert parts * 0.95 <= taken <= parts * 1.1
