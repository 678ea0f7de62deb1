"""`dart-gym bench reset`, shortened: every key is measured on real desktops, and a spare is faster than a boot."""

from __future__ import annotations

import pytest

from dart_gym.bench import reset


@pytest.mark.desktop
async def test_every_key_is_measured(monkeypatch):
    monkeypatch.setattr(reset, "RESETS", 1)
    monkeypatch.setattr(reset, "SIZE", {"width": 320, "height": 240})
    stages: list[str] = []
    report = await reset.measure(stages.append)
    assert len(stages) == 4 and len(report.keys) == 10
    assert all(value > 0 for value in report.keys.values())
    assert report.keys["osworld_spare_vs_cold"] > 1
