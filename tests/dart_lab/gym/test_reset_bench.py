"""`dart-gym bench reset`, shortened: every key is measured on real desktops, and a spare is faster than a boot."""

from __future__ import annotations

import pytest

from dart_lab.gym import reset_bench


@pytest.mark.scale
@pytest.mark.desktop
async def test_every_key_is_measured(monkeypatch):
    monkeypatch.setattr(reset_bench, "RESETS", 1)
    monkeypatch.setattr(reset_bench, "SIZE", {"width": 320, "height": 240})
    stages: list[str] = []
    report = await reset_bench.measure(stages.append)
    assert len(stages) == 4 and len(report.keys) == 10
    assert all(value > 0 for value in report.keys.values())
    assert report.keys["osworld_spare_vs_cold"] > 1
