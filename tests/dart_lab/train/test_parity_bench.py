"""Every family's trainer, engine and own forward pass agree in float32, in all layouts."""

from __future__ import annotations

import pytest

from dart_agent.models.families.family_table import FAMILIES
from dart_lab.train import parity_bench

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.timeout(400)]


@pytest.mark.slow
def test_all_aims_are_met():
    report = parity_bench.measure(lambda text: None)
    for name in FAMILIES:
        pairs = {key.rpartition(".")[2] for key in report.keys if key.startswith(f"parity.{name}.")}
        assert {f"own_vs_{way}" for way in ("separate", "merged", "branched", "packed", "left", "engine")} <= pairs
        later = {key.rpartition(".")[2] for key in report.keys if key.startswith(f"parity.{name}.updated.")}
        assert {f"own_vs_{way}" for way in ("separate", "merged", "branched", "packed", "left", "engine")} <= later
        assert {"engine_vs_packed", "own_vs_merged_flex_attention"} <= pairs
    missed = {key: report.keys[key] for key, aim in report.aims.items() if not aim.met(report.keys[key])}
    assert not missed
    assert report.keys["tower_calls_per_screenshot_published"] == 5044
