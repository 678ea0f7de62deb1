"""The quick start on a Ray cluster is the quick start, but for where rows and files are."""

from pathlib import Path

from dart_train.config.run_config import load_config
from dart_train.nodes.cluster_nodes import check_shared, demand_of

CONFIGS = Path(__file__).parents[3] / "configs"


def test_it_differs_in_what_nodes_need_alone(monkeypatch):
    monkeypatch.setenv("DART_DATA_URL", "mysql+pymysql://user:secret@database/dart")
    here, there = (load_config(CONFIGS / f"{name}.yaml").model_dump() for name in ("quickstart", "quickstart_ray"))
    check_shared(load_config(CONFIGS / "quickstart_ray.yaml"))
    assert there["data"].pop("url_env") == "DART_DATA_URL" and here["data"].pop("url_env") is None
    assert there["data"].pop("files") == "s3://dart/runs" and here["data"].pop("files") is None
    assert there["controls"].pop("supervised") is False and here["controls"].pop("supervised") is True
    assert there.pop("name") == "quickstart-ray" and here.pop("name") == "quickstart"
    assert here == there


def test_it_asks_for_no_gpu_whatever_the_cluster_has():
    config = load_config(CONFIGS / "quickstart_ray.yaml")
    for gpus in (0, 1, 8):
        wanted = demand_of(config, gpus)
        assert wanted.demand.gpus == 0 and len(wanted.engines) == 2 and wanted.trainer == ()
