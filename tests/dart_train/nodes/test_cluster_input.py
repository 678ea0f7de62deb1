"""What cannot be run on a cluster is refused with one message, before anything is started."""

import fsspec
import pytest

from dart_train.config.run_config import ConfigError, parse_config
from dart_train.core.train_errors import DataError
from dart_train.nodes import cluster_nodes
from dart_train.nodes.cluster_nodes import check_reached, check_shared, demand_of
from dart_train.nodes.ray_cluster import ClusterUnreachable, connect
from dart_train.placement.placement import PlacementError
from dart_train.run.run_directory import RunDirectory


def config_of(**sections):
    return parse_config({"name": "r", "rollout": {"tasks": ["fake/click-button"]}, **sections})


def test_sqlite_on_several_nodes_is_refused_with_the_lines_that_start_a_database():
    with pytest.raises(ConfigError, match="cannot share a SQLite file") as raised:
        check_shared(config_of())
    _, *lines = str(raised.value).splitlines()
    assert len(lines) == 2 and lines[0].strip().startswith("docker run") and "DART_DATA_URL" in lines[1]


@pytest.mark.parametrize("files", [None, "/shared/runs"])
def test_files_must_be_where_all_nodes_reach_them(files):
    with pytest.raises(ConfigError, match=r"set data\.files to a bucket"):
        check_shared(config_of(data={"url": "mysql+pymysql://db/dart", "files": files}))


def test_what_is_for_one_machine_is_named():
    data = {"url": "mysql+pymysql://db/dart", "files": "s3://bucket/dart"}
    check_shared(config_of(data=data))
    with pytest.raises(ConfigError, match=r"controls\.supervised"):
        check_shared(config_of(data=data, controls={"supervised": True}))


def test_too_few_gpus_are_refused_with_the_numbers():
    config = config_of(
        rollout={"tasks": ["fake/click-button"], "engine": {"kind": "vllm", "replicas": 8}},
        resources={"trainer_ranks": 8},
    )
    with pytest.raises(PlacementError, match="wants 16 GPUs .8 x 1 for engines, 8 for the trainer.*cluster has 8"):
        demand_of(config, 8)
    assert demand_of(config, 16).demand.gpus == 16


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://10.0.0.1:10001", "HOST:PORT of the head node"),
        ("127.0.0.1:1", "nobody answers at"),
        ("nonsense", "nobody answers at"),
    ],
)
def test_a_cluster_that_is_not_there_is_said_at_once(address, said):
    with pytest.raises(ClusterUnreachable, match=said):
        connect(address)


def test_ray_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ClusterUnreachable, match=r"pip install 'dart-gui\[ray\]'"):
        connect("auto")


@pytest.mark.thorough
def test_a_bucket_or_database_that_is_another_run_s_or_away_is_refused(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(cluster_nodes, "ANSWER_S", 0.5)
    runs = [RunDirectory(tmp_path / place / "r") for place in ("one", "two")]
    for run in runs:
        run.create()
    own = config_of(data={"url": f"sqlite:///{tmp_path}/one.sqlite", "files": bucket})
    check_reached(own, runs[0])
    check_reached(own, runs[0])  # the same command again
    with pytest.raises(DataError, match="knows nothing of"):
        check_reached(own, runs[1])
    elsewhere = config_of(data={"url": f"sqlite:///{tmp_path}/one.sqlite", "files": f"{bucket}/2"})
    with pytest.raises(DataError, match="the database holds a run 'r'"):
        check_reached(elsewhere, runs[1])
    with pytest.raises(DataError, match="cannot be reached"):
        check_reached(config_of(data={"url": "mysql+pymysql://u@127.0.0.1:1/d", "files": f"{bucket}/3"}), runs[1])
    with pytest.raises(DataError, match="no such bucket"):
        check_reached(config_of(data={"url": f"sqlite:///{tmp_path}/3.sqlite", "files": "s3://nowhere/x"}), runs[1])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(DataError, match="cannot be reached"):
        check_reached(own, runs[0])
