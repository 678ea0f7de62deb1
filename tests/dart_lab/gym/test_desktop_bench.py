"""`dart-gym bench desktop`, shortened: every key is measured on real desktops."""

from __future__ import annotations

import pytest

from dart_lab.gym import desktop_bench

KEYS = {
    *("step_ms_p50", "step_vs_stock_paused", "step_vs_stock_unpaused"),
    *("reset_warm_s", "reset_cold_s", "idle_mb", "idle_mb_further"),
}


@pytest.mark.thorough
@pytest.mark.desktop
async def test_every_key_is_measured(monkeypatch):
    for name in ("STEPS", "STOCK_STEPS", "PAUSED_STEPS", "COLD_RESETS", "WARM_RESETS", "FURTHER"):
        monkeypatch.setattr(desktop_bench, name, 1)
    monkeypatch.setattr(desktop_bench, "PAUSE_S", 0.5)
    stages: list[str] = []
    report = await desktop_bench.measure(stages.append)
    assert report.keys.keys() >= KEYS and report.aims.keys() <= report.keys.keys()
    assert all(value > 0 for value in report.keys.values()) and stages
    assert report.keys["idle_mb_further"] < report.keys["idle_mb"], "desktops share what one of them brings"
    assert report.keys["stock_paused_ms_p50"] > 500 and report.keys["step_vs_stock_unpaused"] > 1
