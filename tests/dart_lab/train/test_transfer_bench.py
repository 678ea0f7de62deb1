"""The benchmark of transfers runs whole on a tiny model: both ways, an engine and a rank that are killed."""

from __future__ import annotations

import pytest

from dart_lab.train.transfer_bench import RANKS, SAME_NATS, WAYS, Options, measure

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.process, pytest.mark.timeout(300)]


async def test_no_engine_serves_a_half_updated_version():
    stages: list[str] = []
    report = await measure(Options(model="tiny", rounds=1), stages.append)
    assert stages[-3:-1] == ["an engine is killed amid a transfer", "the main rank is killed amid a transfer"]
    assert report.keys["transfer.adapter_mib"] < report.keys["transfer.merged_mib"]
    assert report.keys["transfer.mixed_responses"] == 0 and report.keys["transfer.versions_seen"] >= 3
    assert report.keys["transfer.version_gap_nats"] > 5 * SAME_NATS
    names = {"stopped_s", "served_s", "written_s", *(f"peak_mib_rank{rank}" for rank in range(RANKS))}
    assert {f"transfer.{way}_{name}" for way in WAYS for name in names} <= report.keys.keys()
