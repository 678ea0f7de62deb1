"""A trainer whose database server is killed and comes back."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from tests.helpers.mariadb import MariaDB
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.train, pytest.mark.mysql, pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.thorough
def test_a_trainer_goes_on_when_its_database_comes_back(
    make_config, model_dir, record_into, tmp_path, monkeypatch, caplog
):
    from dart_train.trainer import DartGRPOTrainer

    monkeypatch.setattr("dart_train.data.store.sql_store.SAY_AWAY_S", 0.5)
    curation, log = CurationConfig(group_size=4, max_staleness=None), tmp_path / "metrics.jsonl"
    with (
        MariaDB() as server,
        DataManager.open(
            server.new_url(), tmp_path / "data", "run", config=curation, unavailable_timeout_s=100.0
        ) as data,
        ThreadPoolExecutor(1) as threads,
    ):
        record_into(data, "before")
        config = make_config(groups_per_step=1, max_steps=2, publish_steps=1)
        trainer = DartGRPOTrainer(model_dir, config, data, metrics=MetricsLog(log))
        training = threads.submit(trainer.run)

        def ended() -> str:
            return repr(training.exception()) if training.done() else ""

        wait_until(lambda: sum(1 for _ in read_metrics(log)) == 1, 120, trouble=ended)
        server.stop(signal.SIGKILL)
        wait_until(lambda: "is away, will go on trying for 100 s" in caplog.text, 120, trouble=ended)
        server.start()
        record_into(data, "after")
        training.result(120)
        assert [row["step"] for row in read_metrics(log)] == [1, 2]
        assert data.counts()["trained"] == 8 and not data.counts().get("leased")
        assert data.newest_checkpoint().version == 2
    assert "is back after" in caplog.text
