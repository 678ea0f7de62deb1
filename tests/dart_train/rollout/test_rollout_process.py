"""`rollout` of a run as a process: it ends in order when told to, and leaves nothing when killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import yaml
from pool_builders import until

from dart_gym.utils.processes import STOPPED_STATUS
from dart_train.config.run_config import load_config
from dart_train.core.metrics_log import read_metrics
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.run.run_directory import RunDirectory

pytestmark = [pytest.mark.train, pytest.mark.e2e]
CONFIG = {
    "name": "rollouts",
    "rollout": {
        "tasks": ["fake/click-button"],
        "workers": 2,
        "sampling": {"max_tokens": 6},
        "engine": {"replicas": 1},
        "metrics_interval_s": 0.2,
        "stop_grace_s": 60.0,
    },
    "data": {"curation": {"batches_ahead": None, "max_staleness": None}},
}


@pytest.fixture
def run(tmp_path: Path, model_dir: Path) -> RunDirectory:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    run = RunDirectory(tmp_path / "rollouts")
    run.create()
    with open_data(run) as data:
        data.publish(0, model_dir, "initial")
    return run


def open_data(run: RunDirectory) -> DataManager:
    return DataManager.open(run.database_url, run.data, "rollouts")


def start(run: RunDirectory, cluster_url: str, temporary: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "dart_train", "process", str(run.root.parent / "config.yaml"), "rollout"]
    command += ["--runs-dir", str(run.root.parent), "--url", cluster_url]
    with (run.root / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(temporary)})


async def play_some(run: RunDirectory, process: subprocess.Popen) -> list[psutil.Process]:
    """Wait until some rollouts are played; return the engines."""

    def some() -> bool:
        assert process.poll() is None, (run.root / "log").read_text()
        return any(line["rollouts"] >= 8 for line in read_metrics(run.metrics("rollout")))

    await until(some)
    engines = psutil.Process(process.pid).children()
    assert len(engines) == 1
    return engines


def dead(engines: list[psutil.Process]) -> bool:
    return not any(engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE for engine in engines)


@pytest.mark.thorough
async def test_sigterm_ends_it_in_order_and_sigkill_leaves_no_engine(run, cluster_url):
    assert load_config(run.root.parent / "config.yaml").name == "rollouts"
    with tempfile.TemporaryDirectory(prefix="dart-t-") as name:
        temporary = Path(name)
        process = start(run, cluster_url, temporary)
        engines = await play_some(run, process)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == STOPPED_STATUS, (run.root / "log").read_text()
        assert dead(engines) and list(temporary.iterdir()) == []
        with open_data(run) as data:
            recorded = sum(stats.rollouts for stats in data.read(statistics.task_stats, 4).values())
        assert recorded == list(read_metrics(run.metrics("rollout")))[-1]["rollouts"]

        run.metrics("rollout").unlink()
        process = start(run, cluster_url, temporary)
        engines = await play_some(run, process)
        assert list(read_metrics(run.metrics("rollout")))[0]["rollouts"] >= recorded
        process.kill()
        await asyncio.to_thread(process.wait)
        await until(lambda: dead(engines))


@pytest.mark.slow
async def test_a_second_sigterm_ends_it_at_once(run, cluster_url):
    with tempfile.TemporaryDirectory(prefix="dart-t-") as name:
        process = start(run, cluster_url, Path(name))
        engines = await play_some(run, process)
        engines[0].suspend()  # requests stay without an answer, and episodes do not end
        process.send_signal(signal.SIGTERM)
        await until(lambda: "told to stop" in (run.root / "log").read_text())
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 20) == 128 + signal.SIGINT
        assert "told twice to stop" in (run.root / "log").read_text()
        await until(lambda: dead(engines))
