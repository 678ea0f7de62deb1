"""Nodes with a database and an object store on the head, and a run on them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dart_train.config.run_config import load_config
from dart_train.data.manager.data_manager import DataManager
from tests.dart_train.nodes.separate_nodes import HOME, ROOT, Network, Node
from tests.helpers.waiting import wait_until

PORT, STORE_PORT, BUCKET = 3306, 9000, "dart"
SECRET = "of-the-test"
START_S = 120.0


class Cluster:
    """Nodes that are joined to a Ray cluster, as they come and go.

    Attributes:
        network: what joins them.
        head: has database and store, and starts the run.
        environment: what a launcher needs to reach both.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.head = network, network.node(1)
        address = self.head.address
        self.environment = {
            "DART_DATA_URL": f"mysql+pymysql://dart:{SECRET}@{address}:{PORT}/dart",
            "AWS_ENDPOINT_URL": f"http://{address}:{STORE_PORT}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.head.run("mkdir", "-p", "/tmp/services")
        services = f"{ROOT}/.venv/bin/python", "-m", "tests.dart_train.nodes.head_services", "/tmp/services", address
        self._services = self.head.start(*services)
        wait_until(lambda: self.head.path("/tmp/services/ready").exists(), START_S)

    def begin(self, config: Path, *overrides: str) -> subprocess.Popen[bytes]:
        """The command that runs, or goes on with, a configuration; its output is `run.txt` on the head."""
        self.head.path("/tmp/run.yaml").write_text(config.read_text())
        settings = [word for override in overrides for word in ("--set", override)]
        command = (f"{ROOT}/.venv/bin/dart-train", "run", "/tmp/run.yaml", *settings, "--ray", "auto", "--plain")
        with self.head.path("/tmp/run.txt").open("ab") as output:
            return self.head.start(
                *command, "--runs-dir", f"{HOME}/runs", environment=self.environment, stdout=output, stderr=output
            )

    def said(self) -> str:
        """What the launcher has printed."""
        return self.head.path("/tmp/run.txt").read_text()

    def root(self, name: str) -> Path:
        """Directory of a run, as the test reaches it."""
        return self.head.path(f"{HOME}/runs/{name}")

    @contextlib.contextmanager
    def data(self, name: str, config: Path) -> Iterator[DataManager]:
        """The run's data, as any node reads it."""
        loaded = load_config(config)
        with DataManager.open(
            self.environment["DART_DATA_URL"], f"s3://{BUCKET}/runs/{name}", name, config=loaded.data.curation
        ) as data:
            yield data


def killed(node: Node, pattern: str) -> None:
    """Kill -9 the programs of a node whose command line holds a text."""
    node.run("pkill", "-9", "-f", pattern)
