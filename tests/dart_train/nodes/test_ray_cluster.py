"""A run on a Ray cluster of nodes that have no directory in common, while they and its processes are killed and join.

One run, in stages: each test goes on where the one before has left it.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.core.errors import ClusterError
from dart_train.core.data_states import FORK_SOURCE, LeaseState
from dart_train.core.metrics_log import read_metrics
from dart_train.data.insight import statistics
from dart_train.data.store import schema
from tests.dart_train.nodes.cluster_of_nodes import Cluster, killed
from tests.dart_train.nodes.separate_nodes import HOME, RAY_PORT, ROOT, Node
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1500)]
CONFIG = Path(__file__).with_name("cluster_run.yaml")
NAME = "cluster"
BEGIN_S, AGAIN_S = 600.0, 240.0
"""Limits, not aims: alone on two cores it begins after 80 s, and goes on after 1 to 63; beside others much later."""


class Life:
    """The run as the stages have left it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, Node] = {}
        self.launcher = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        self.cluster.head.join(cpus=2)  # both ranks, and nothing else
        for host, name, cpus in ((2, "engines", 1), (3, "desktops", 0)):
            self.nodes[name] = self.cluster.network.node(host)
            self.nodes[name].join(self.cluster.head, cpus=cpus, desktops=2)
        return self.cluster.begin(CONFIG)

    def recorded(self) -> int:
        """Rollouts that the database has."""
        with self.cluster.data(NAME, CONFIG) as data:
            return sum(data.census().parts().values())

    def version(self) -> int:
        """The newest published version."""
        with self.cluster.data(NAME, CONFIG) as data:
            newest = data.newest_checkpoint()
            return newest.version if newest else 0

    def scored(self) -> int:
        """Rollouts and continuations of forks that have a score."""
        meta = schema.rollout_meta.c
        query = sa.select(sa.func.count()).where(meta.run_id == NAME, meta.reward.is_not(None))
        return self._count(query)

    def trained_forks(self) -> int:
        """Groups of continuations that were trained on."""
        item, lease, meta = schema.lease_item.c, schema.lease.c, schema.rollout_meta.c
        query = (
            sa.select(sa.func.count(sa.distinct(meta.group_id)))
            .join_from(schema.rollout_meta, schema.lease_item, item.group_id == meta.group_id)
            .join(schema.lease, lease.lease_id == item.lease_id)
            .where(lease.run_id == NAME, lease.state == LeaseState.COMMITTED.value, meta.source == FORK_SOURCE)
        )
        return self._count(query)

    def times_trained(self) -> list[int]:
        """How often each group was trained on."""
        item, lease = schema.lease_item.c, schema.lease.c
        query = (
            sa.select(sa.func.count())
            .select_from(schema.lease_item)
            .join(schema.lease, lease.lease_id == item.lease_id)
            .where(lease.run_id == NAME, lease.state == LeaseState.COMMITTED.value)
            .group_by(item.group_id)
        )
        with self.cluster.data(NAME, CONFIG) as data:
            return list(data.store.read(lambda connection: connection.execute(query).scalars().all()))

    def forked_tasks(self) -> set[str]:
        """Tasks with continuations of forks."""
        meta = schema.rollout_meta.c
        query = sa.select(meta.task_id).distinct().where(meta.run_id == NAME, meta.source == FORK_SOURCE)
        with self.cluster.data(NAME, CONFIG) as data:
            return set(data.store.read(lambda connection: connection.execute(query).scalars().all()))

    def _count(self, query: sa.Select[tuple[int]]) -> int:
        with self.cluster.data(NAME, CONFIG) as data:
            return int(data.store.read(lambda connection: connection.execute(query).scalar_one()))

    def until(self, condition: object, seconds: float) -> float:
        """Wait until something holds, while the launcher lives; returns the seconds that it took."""
        started = time.monotonic()
        wait_until(condition, seconds, trouble=self._ended, explain=self._explain, look_s=0.5)
        return time.monotonic() - started

    def goes_on(self, seconds: float = AGAIN_S, more: int = 8) -> float:
        """Wait until more rollouts are recorded; returns the seconds that it took."""
        before = self.recorded()
        return self.until(lambda: self.recorded() >= before + more, seconds)

    def servers(self) -> list[str]:
        """Addresses of the servers of desktops that are listed."""
        path = self.cluster.root(NAME) / "desktops.txt"
        return [line.split("//")[1].split(":")[0] for line in path.read_text().split()] if path.exists() else []

    def played_on(self) -> set[str]:
        """Addresses of the nodes on whose desktops somebody has played."""
        return {urlsplit(desktop["server"]).hostname for desktop in self.desktops() if desktop["episodes"]}

    def desktops(self) -> list[dict[str, Any]]:
        """What the run's servers tell a client about their desktops."""
        keys, patch = self.cluster.root(NAME) / "keys", pytest.MonkeyPatch()
        patch.setenv("SSL_CERT_FILE", str(keys / "authority.pem"))
        client = ClusterClient(f"file://{self.cluster.root(NAME)}/desktops.txt", token=(keys / "token").read_text())
        try:
            return list(asyncio.run(client.status())["desktops"])
        except ClusterError:  # none answers at this moment
            return []
        finally:
            patch.undo()

    def ask(self, node: Node, *words: str) -> str:
        """What `dart-train` answers on a node."""
        return node.run(f"{ROOT}/.venv/bin/dart-train", *words, "--ray", f"{self.cluster.head.address}:{RAY_PORT}")

    def _explain(self) -> str:
        log = (self.cluster.root(NAME) / "logs" / "rollout.log").read_text()[-2000:]
        return f"{self.cluster.said()[-2000:]}\n{log}\n{self.recorded()} recorded on {self.desktops()}"

    def _ended(self) -> str:
        return self.cluster.said()[-2000:] if self.launcher.poll() is not None else ""


@pytest.fixture(scope="module")
def life(cluster: Cluster) -> Iterator[Life]:
    """The run, from its beginning."""
    yield Life(cluster)


def say(record_property, **figures: float) -> None:
    """Keep figures with the test's result, and print them."""
    for name, value in figures.items():
        record_property(name, round(value, 1))
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


def test_a_run_trains_on_nodes_without_a_common_directory(life, record_property):
    say(record_property, begins_s=life.until(lambda: life.version() >= 3, BEGIN_S))
    assert sorted(life.servers()) == sorted(life.nodes[name].address for name in ("engines", "desktops"))
    own = life.nodes["desktops"].path(f"{HOME}/.cache/dart-gui/runs/{NAME}")
    assert not list(own.glob("**/*.safetensors"))  # nobody there asked for weights
    with life.cluster.data(NAME, CONFIG) as data:
        assert {row.path.partition(":")[0] for row in data.checkpoints()} == {"s3"}


def test_any_node_sees_the_run(life):
    asked = life.ask(life.nodes["desktops"], "status", NAME)
    assert "running, in rl" in asked and f"learn on {life.cluster.head.address}" in asked
    assert "engine ready" in life.ask(life.nodes["desktops"], "status", NAME, "--log", "engine-0")


def test_a_lost_node_of_desktops_costs_its_episodes_alone(life, record_property):
    life.nodes.pop("desktops").kill()
    say(record_property, node_of_desktops_s=life.goes_on())
    life.until(lambda: life.servers() == [life.nodes["engines"].address], AGAIN_S)


def test_a_node_that_joins_adds_desktops(life, record_property):
    joined = life.nodes["joined"] = life.cluster.network.node(4)
    joined.join(life.cluster.head, cpus=1, desktops=2)
    say(record_property, joined_s=life.until(lambda: joined.address in life.servers(), AGAIN_S))
    say(record_property, played_on_s=life.until(lambda: joined.address in life.played_on(), AGAIN_S))


def test_a_killed_rank_begins_again_from_the_last_state(life, record_property):
    life.until(lambda: life.version() >= 6, BEGIN_S)
    before = life.version()
    killed(life.cluster.head, "dart_train process .* learn")
    say(record_property, rank_s=life.until(lambda: life.version() > before + 1, BEGIN_S))


def test_a_lost_node_of_engines_is_replaced(life, record_property):
    log = life.cluster.root(NAME) / "logs" / "engine-0.log"
    life.nodes.pop("engines").kill()
    there = f"engine ready at wss://{life.nodes['joined'].address}"
    say(record_property, node_of_engines_s=life.until(lambda: there in log.read_text(), AGAIN_S))
    life.goes_on()


def test_the_same_command_goes_on_after_the_head_has_ended(life, record_property):
    before, version = life.recorded(), life.version()
    killed(life.cluster.head, "dart-train run")
    life.launcher.wait(30)
    life.cluster.head.run(f"{ROOT}/.venv/bin/ray", "stop", "--force")
    life.nodes.pop("joined").kill()
    life.cluster.head.join(cpus=2)
    again = life.nodes["again"] = life.cluster.network.node(5)
    again.join(life.cluster.head, cpus=1, desktops=2)
    life.launcher = life.cluster.begin(CONFIG)
    say(record_property, again_s=life.until(lambda: life.version() > version + 1, BEGIN_S))
    life.until(lambda: life.recorded() > before, AGAIN_S)  # there was a stock to train on


def test_groups_are_forked_wherever_desktops_are(life, record_property):
    """Each of the nodes and processes before was lost while groups were forked and continuations played."""
    life.until(lambda: life.trained_forks() > 2, BEGIN_S)
    with life.cluster.data(NAME, CONFIG) as data:
        counts = data.read(statistics.forks)
    say(record_property, forks=counts.begun, continuations=counts.rollouts)
    assert counts.begun > 2 and counts.given_up == {}, "a lost desktop is no replay that came out differently"
    assert life.forked_tasks() == {"fake/two-steps"}, "a single action cannot be forked"
    asked = life.ask(list(life.nodes.values())[-1], "status", NAME)
    assert re.search(r"^  forks: [1-9]\d*\s*$", asked, re.MULTILINE), asked


def test_forks_are_in_budget_and_report_and_nothing_is_trained_twice(life):
    stopped = life.ask(list(life.nodes.values())[-1], "stop", NAME)
    assert "the same command resumes it" in stopped
    assert life.launcher.wait(60) == 130
    root, program = life.cluster.root(NAME), f"{ROOT}/.venv/bin/dart-train"
    for command in (("data", "check"), ("report",)):
        words = (*command, f"{HOME}/runs/{NAME}/config.yaml", "--runs-dir", f"{HOME}/runs")
        said = life.cluster.head.run(program, *words, timeout=300, **life.cluster.environment)
        assert "damaged" not in said, said
    with life.cluster.data(NAME, CONFIG) as data:
        counts = data.read(statistics.forks)
    figures = json.loads((root / "report.json").read_text())
    assert (figures["forks"], figures["fork_rollouts"]) == (counts.begun, counts.rollouts)
    assert f"Forks: {counts.begun} episodes" in (root / "report.html").read_text()
    *_, newest = read_metrics(root / "metrics" / "rollout.jsonl")
    assert life.scored() - newest["rollouts"] < counts.rollouts, "continuations count against the budget"
    assert set(life.times_trained()) == {1}
