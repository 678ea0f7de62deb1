"""`dart-train data`: its schema, and a run as one file."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest
from data_builders import RUN, SMALL, make_trajectory, picture, publish, record_group, record_with_image
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError, parse_config
from dart_train.core.train_errors import CorruptDataError, DataError, SchemaError
from dart_train.data import DataManager
from dart_train.data.insight import serving, statistics
from dart_train.data.maintenance.transfer import ROWS_OF_PARENT, ROWS_OF_RUN, export_run, import_run
from dart_train.data.store.schema import REVISION, alembic_version
from dart_train.data.store.sql_store import Store

MINIMAL = {"name": "tiny", "rollout": {"tasks": [{"id": "fake/button"}]}}


def _lived_in(data: DataManager) -> None:
    """A run with a bit of everything."""
    publish(data, 0)
    record_group(data, "trained")
    record_group(data, "ready")
    record_with_image(data, "i-0", "image", picture(1), 0.0)
    record_with_image(data, "i-1", "image", picture(1), 1.0)
    data.record(make_trajectory("demo", "", 1.0, source="oracle"))
    data.lease(1, "me").commit(0)
    data.lease(1, "me", ttl_s=1e6)
    data.refresh_task_stats()
    data.set_fact("seed", 7)
    data.serving("r0", 0)


def test_a_run_comes_back_from_an_archive(database, data, tmp_path):
    """On each database; from one into the other as well: archives know of none."""
    _lived_in(data)
    done = export_run(data, tmp_path / "run.tar")
    assert (done.trajectories, done.images, done.rows["rollout_run"]) == (7, 1, 7)
    url = f"sqlite:///{tmp_path}/other.sqlite"
    with DataManager.open(url, tmp_path / "neighbour", RUN, config=SMALL) as neighbour:
        _lived_in(neighbour)  # so that ids are others here
    with DataManager.open(url, tmp_path / "other", "copy", config=SMALL) as copy:
        assert import_run(copy, tmp_path / "run.tar") == done
        assert copy.census() == data.census()
        assert copy.counts() == data.counts()
        assert copy.read(statistics.saved_task_stats) == data.read(statistics.saved_task_stats)
        assert (copy.fact("seed"), copy.read(serving.serving_now), copy.ready()) == (7, {"r0": 0}, data.ready())
        assert [row.version for row in copy.checkpoints()] == [0]
        names = [(t.trajectory_id, t.score, t.steps) for t in data.trajectories()]
        assert [(t.trajectory_id, t.score, t.steps) for t in copy.trajectories()] == names
        assert {t.run_id for t in copy.trajectories()} == {"copy"}
        assert copy.resume("me", 2).committed == 1  # the lease that was held goes on
        with pytest.raises(DataError, match="run 'copy' has rows already"):
            import_run(copy, tmp_path / "run.tar")


def test_an_archive_of_another_version_says_which_one_wrote_it(data, tmp_path):
    manifest = json.dumps({"format": 1, "revision": "0002", "run_id": "r", "trajectories": 0}).encode()
    with tarfile.open(tmp_path / "old.tar", "w") as archive:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(manifest)
        archive.addfile(entry, io.BytesIO(manifest))
    with pytest.raises(
        DataError, match=r"was written by version 0\.1\.0 of this package .*import it with that version"
    ):
        import_run(data, tmp_path / "old.tar")


def test_what_is_no_archive_is_refused(data, tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CorruptDataError):
        import_run(data, tmp_path / "text")
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(CorruptDataError, match="no archive of `dart-train data export`"):
        import_run(data, tmp_path / "empty.tar")
    record_group(data, "g")
    export_run(data, tmp_path / "run.tar")
    with tarfile.open(tmp_path / "run.tar") as whole, tarfile.open(tmp_path / "less.tar", "w") as less:
        for member in whole:
            if "g-1" not in member.name:
                less.addfile(member, whole.extractfile(member))
    with (
        DataManager.open(f"sqlite:///{tmp_path}/o.sqlite", tmp_path / "o", RUN, config=SMALL) as other,
        pytest.raises(CorruptDataError, match="1 of 2 trajectories"),
    ):
        import_run(other, tmp_path / "less.tar")
    assert not list(tmp_path.glob(".*.partial"))


# Archives of somebody else


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _whole(extra: dict[str, bytes]) -> bytes:
    """An archive without a run's files, but for these."""
    manifest = json.dumps(
        {"format": 1, "revision": REVISION, "run_id": "r", "rows": {}, "trajectories": 0, "images": 0}
    )
    return _tar(
        *[(tarfile.TarInfo(name), data) for name, data in {"manifest.json": manifest.encode(), **extra}.items()]
    )


def _blank(side: int) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((side // 8 + 1) * side), 9)
    chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _extended(name: str) -> bytes:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": name}
    return info.tobuf(tarfile.PAX_FORMAT)


HOSTILE = {
    "rows that expand": lambda: gzip.compress(_whole({"rows/rollout_run.jsonl": b" " * (300 << 20)})),
    "a line without end": lambda: gzip.compress(_whole({"rows/rollout_run.jsonl": b"x" * (60 << 20)})),
    "a trajectory that expands": lambda: bz2.compress(_whole({"trajectories/a.msgpack": b"\x80" * (50 << 20)})),
    "a large image": lambda: _whole({f"images/{'a' * 32}.png": _blank(12_000)}),
    "a header that expands": lambda: lzma.compress(_extended("x" * (100 << 20))),
    "a large manifest": lambda: gzip.compress(_tar((tarfile.TarInfo("manifest.json"), b"[" * (20 << 20)))),
    "a deep manifest": lambda: _tar((tarfile.TarInfo("manifest.json"), b"[" * 500_000)),
    "nothing but headers": lambda: gzip.compress(_tar(*[(tarfile.TarInfo("x"), b"")]) [:512] * 30_000),
    "a link": lambda: _tar((_linked("manifest.json"), b"")),
    "a size without end": lambda: _sized(1 << 50),
    "rows twice": lambda: _tar(*[(tarfile.TarInfo("manifest.json"), b"{}")] * 2),
    "rows of something else": lambda: _whole(
        {f"rows/{name}.jsonl": b"[]\n" for name in (*ROWS_OF_RUN, *ROWS_OF_PARENT)}
    ),
    "cut off": lambda: gzip.compress(_whole({}))[:-9],
}  # fmt: skip


def _linked(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


def _sized(size: int) -> bytes:
    info = tarfile.TarInfo("manifest.json")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.thorough
@pytest.mark.parametrize("how", HOSTILE)
def test_an_archive_takes_bounded_memory_and_is_refused(tmp_path, how):
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[how]())
    with DataManager.open(f"sqlite:///{tmp_path}/x.sqlite", tmp_path / "own", RUN, config=SMALL) as own:
        tracemalloc.start()
        with pytest.raises(CorruptDataError):
            import_run(own, path)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert own.counts() == dict.fromkeys(own.counts(), 0)
    assert most < 150 << 20


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_archive_is_read(data, tmp_path, pack):
    _lived_in(data)
    done = export_run(data, tmp_path / "run.tar")
    (tmp_path / "packed").write_bytes(pack((tmp_path / "run.tar").read_bytes()))
    with DataManager.open(f"sqlite:///{tmp_path}/other.sqlite", tmp_path / "other", "copy", config=SMALL) as copy:
        assert import_run(copy, tmp_path / "packed") == done and copy.counts() == data.counts()


# The commands


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(MINIMAL))
    return [str(path), "--runs-dir", str(tmp_path / "runs")]


def _invoke(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_check_migrate_makes_the_tables_and_refuses_another_version(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/x.sqlite"
    assert f"has schema version {REVISION}" in _invoke("check", "--migrate", "--url", url)
    monkeypatch.setenv("DART_DATA_URL", url)
    assert f"has schema version {REVISION}" in _invoke("check", "--migrate")
    store = Store(url)
    store.write(lambda c: c.execute(alembic_version.update().values(version_num="0001")))
    store.close()
    with pytest.raises(SchemaError, match=r"written by version 0\.1\.0"):
        _invoke("check", "--migrate")
    monkeypatch.delenv("DART_DATA_URL")
    with pytest.raises(ConfigError, match="which database"):
        _invoke("check", "--migrate")


def test_export_and_import_by_commands(tmp_path, config):
    root = tmp_path / "runs" / "tiny"
    assert "has schema version" in _invoke("check", *config, "--migrate")
    with DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "tiny", config=SMALL) as data:
        record_group(data, "g", run_id="tiny")
    archive = str(tmp_path / "run.tar")
    assert "2 trajectories" in _invoke("export", config[0], archive, *config[1:])
    assert "2 trajectories" in _invoke("import", config[0], archive, *config[1:], "--name", "copy")
    copy = tmp_path / "runs" / "copy"
    with DataManager.open(f"sqlite:///{copy}/data/dart.sqlite", copy / "data", "copy", config=SMALL) as data:
        assert data.census().total == 2


# Where the database is


def test_a_password_in_a_file_is_refused_and_not_shown():
    url = "mysql+pymysql://me:hunter2@host/db"
    with pytest.raises(ConfigError, match="put the url into an environment variable") as caught:
        parse_config({**MINIMAL, "data": {"url": url}})
    assert "hunter2" not in str(caught.value)


def test_the_url_may_come_from_the_environment(monkeypatch):
    config = parse_config({**MINIMAL, "data": {"url_env": "MY_URL"}}).data
    with pytest.raises(ConfigError, match="MY_URL is not set"):
        config.database_url()
    monkeypatch.setenv("MY_URL", "mysql+pymysql://me:hunter2@host/db")
    assert config.database_url() == "mysql+pymysql://me:hunter2@host/db"
    plain = parse_config({**MINIMAL, "data": {"url": "mysql+pymysql://me@host/db"}}).data
    assert plain.database_url() == "mysql+pymysql://me@host/db"
