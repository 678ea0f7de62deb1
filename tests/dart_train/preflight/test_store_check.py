"""A run whose database or storage does not answer is refused before anything starts, and nothing is left in them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import fsspec
import pytest
import sqlalchemy as sa

from dart_train.config.run_config import load_config
from dart_train.data.store.sql_store import Store
from dart_train.preflight.store_check import store_problems
from tests.helpers.mariadb import MariaDB
from tests.helpers.object_store import s3_bucket

QUICK = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def problems(*overrides: str) -> list[str]:
    return store_problems(load_config(QUICK, list(overrides)))


def test_a_run_directory_of_its_own_needs_nothing():
    assert problems() == []


def test_a_database_file(tmp_path):
    path = tmp_path / "new" / "data.sqlite"
    assert problems(f"data.url=sqlite:///{path}") == [] and not path.parent.exists(), "nothing is made"
    path.parent.mkdir()
    Store(f"sqlite:///{path}").close()
    assert problems(f"data.url=sqlite:///{path}") == []
    path.write_text("no database" * 100)
    (found,) = problems(f"data.url=sqlite:///{path}")
    assert found.startswith("data.url: ") and str(path) in found
    (found,) = problems(f"data.url=sqlite:///{path}/below.sqlite")
    assert "cannot be written" in found and "owner" in found


def test_a_database_of_another_version(tmp_path):
    path = tmp_path / "data.sqlite"
    Store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v9_9_9'")
    (found,) = problems(f"data.url=sqlite:///{path}")
    assert "v9_9_9" in found


def test_servers_that_are_not_there_and_drivers_that_are_not_installed(monkeypatch):
    monkeypatch.setenv("DART_URL", "mysql+pymysql://u:secret@127.0.0.1:9/dart")
    (found,) = problems("data.url_env=DART_URL")
    assert "cannot be reached" in found and "secret" not in found
    (found,) = problems("data.url=oracle://host/data")
    assert found.startswith("data.url: no driver for oracle")


@pytest.mark.mysql
def test_a_server_that_lets_nobody_in(monkeypatch):
    with MariaDB() as server:
        url = server.new_url()
        monkeypatch.setenv("DART_URL", url)
        assert problems("data.url_env=DART_URL") == []
        wrong = sa.make_url(url).set(username="nobody", password="wrong")
        monkeypatch.setenv("DART_URL", wrong.render_as_string(hide_password=False))
        (found,) = problems("data.url_env=DART_URL")
        assert "does not let this user in" in found and "wrong" not in found


@pytest.mark.thorough
def test_buckets(monkeypatch):
    with s3_bucket() as url:
        assert problems(f"data.files={url}/runs") == []
        assert fsspec.filesystem("s3").find(f"{url}/runs/probe") == [], (
            "the probe is removed"
        )  # other tests have the bucket, too
        (found,) = problems(f"data.files={url}-of-nobody/runs")
        assert found.startswith("data.files: ") and "no such bucket" in found
    (found,) = problems("data.files=nothing://bucket/runs")
    assert "nothing" in found


def test_a_folder_for_the_files(tmp_path):
    assert problems(f"data.files={tmp_path}/new/files") == [] and list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert "cannot be written" in problems(f"data.files={tmp_path}/file/below")[0]
