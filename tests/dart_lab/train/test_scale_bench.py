"""`dart-train bench scale`, shortened: the whole service plays, is recorded and trained on; every key is there."""

import numpy as np
import pytest

from dart_lab.efficiency.efficiency_bench import growth_table
from dart_lab.efficiency.study import GROWTH_DESKTOPS, Length, Runner, growth
from dart_lab.efficiency.workload import Setting
from dart_lab.train import image_bench, scale_bench

pytestmark = [pytest.mark.process, pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.mark.slow
@pytest.mark.scale
async def test_a_small_service_plays_and_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a user may be anywhere
    said: list[str] = []
    sizes = scale_bench.Sizes(desktops=8, servers=2, engines=2, seconds=20.0, skip_s=5.0, batch_groups=1, image_s=0.0)
    report = await scale_bench.measure(sizes, said.append)
    keys = report.keys
    assert keys["scale.trajectories_per_min"] > 0 and keys["scale.steps_per_s"] > 0
    assert 0 < keys["scale.control_ms_per_step"] < 1000 and 0 <= keys["scale.expired_share"] <= 1
    assert keys["scale.memory_mb"] > 50 and "scale.memory_growth_mb" in keys
    assert any("trajectories" in line for line in said)


async def test_requests_with_screenshots():
    found = await image_bench.measure_images(("blank", "busy"), desktops=2, seconds=3.0)
    assert found["requests_per_s"] > 0 and found["cpu_ms"] > 0
    assert found["cpu_vs_anew"] > 3, "screenshots are encoded once"


@pytest.mark.parametrize("kind", image_bench.KINDS)
def test_screenshots_of_an_episode_are_unlike(kind):
    first, second = (image for image, _ in zip(image_bench.screenshots(kind, 0), range(2), strict=False))
    assert first.shape == (1092, 1932, 3) and not np.array_equal(first, second)


def test_more_desktops_play_more_until_the_engines_are_busy(monkeypatch):
    monkeypatch.setattr("dart_lab.efficiency.study.GROWTH_DESKTOPS", GROWTH_DESKTOPS[:2])
    monkeypatch.setattr("dart_lab.efficiency.study.GROWTH_ENGINES", (1, 4))
    with Runner(Length(hours=0.1, skip_hours=0.1, seeds=(0,)), workers=1) as runner:
        found = growth(runner, Setting())
    assert found[20][1].steps < found[80][4].steps
    assert found[80][1].rollout_utilisation > found[80][4].rollout_utilisation
    assert growth_table(found).row_count == 2
