"""Ranks on two nodes without a common directory: each has a part of the model, and writes its part of the states."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.dart_train.nodes.cluster_of_nodes import Cluster, killed
from tests.dart_train.nodes.separate_nodes import HOME, ROOT
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
CONFIG = Path(__file__).with_name("ranks_run.yaml")
NAME = "ranks"
BEGIN_S = 600.0


@pytest.fixture(scope="module")
def launcher(cluster: Cluster):
    cluster.head.join(cpus=2)  # a rank, and the engine
    cluster.network.node(2).join(cluster.head, cpus=1, desktops=2)
    return cluster.begin(CONFIG)


def version(cluster: Cluster) -> int:
    with cluster.data(NAME, CONFIG) as data:
        newest = data.newest_checkpoint()
        return newest.version if newest else 0


def ranks_on(cluster: Cluster) -> list[str]:
    """Addresses of the nodes with ranks, the main one's first."""
    status = cluster.head.run(f"{ROOT}/.venv/bin/dart-train", "status", NAME, "--ray", "auto")
    found = re.search(r"learn on ([\d.]+), ([\d.]+)", status)
    assert found, status
    return [*found.groups()]


def goes_on(cluster: Cluster, launcher, beyond: int) -> float:
    """Wait until versions beyond one are published; returns the seconds that it took."""
    began = time.monotonic()

    def trouble() -> str:
        return cluster.said()[-3000:] if launcher.poll() is not None else ""

    def explain() -> str:
        log = cluster.root(NAME) / "logs" / "learn.log"
        return f"{cluster.said()[-2000:]}\n{log.read_text()[-4000:] if log.exists() else ''}"

    wait_until(lambda: version(cluster) > beyond, BEGIN_S, trouble=trouble, explain=explain, look_s=0.5)
    return time.monotonic() - began


def test_ranks_on_two_nodes_train_one_model(cluster, launcher):
    goes_on(cluster, launcher, 3)
    assert sorted(ranks_on(cluster)) == sorted(node.address for node in cluster.network.nodes)


@pytest.mark.parametrize("host", [1, 2])
def test_a_killed_rank_of_either_node_begins_again_from_the_state_of_both(cluster, launcher, host):
    log = cluster.root(NAME) / "logs" / "learn.log"
    before, said = version(cluster), len(log.read_text())
    node = next(node for node in cluster.network.nodes if node.address.endswith(f".{host}"))
    killed(node, "dart_train process .* learn")
    goes_on(cluster, launcher, before + 2)
    assert re.search(r"checkpoint-\d+", log.read_text()[said:]), log.read_text()[said:]
    second = next(node for node in cluster.network.nodes if node.address == ranks_on(cluster)[1])
    assert len(list(second.path(f"{HOME}/.cache/dart-gui/runs/{NAME}/trainer").glob("checkpoint-*"))) <= 1
