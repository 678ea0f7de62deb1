"""A database whose machine is cut off says nothing more, not even that a connection has ended."""

from __future__ import annotations

import socket
import subprocess
import threading
import time

import pytest

from dart_train.core.train_errors import DatabaseGoneError
from dart_train.data.store import sql_store
from dart_train.data.store.sql_store import Store
from tests.dart_train.nodes.separate_nodes import Network
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]
PORT = 3306
# It is cut off as soon as somebody is there, before its greeting; to wait for an answer to a statement is the same.
SERVER = f"""
import pathlib, socket
server = socket.create_server(("0.0.0.0", {PORT}))
pathlib.Path("/tmp/ready").touch()
connection, _ = server.accept()
pathlib.Path("/tmp/came").touch()
connection.recv(1)
"""


def test_a_database_whose_machine_is_cut_off_is_missed(monkeypatch):
    quick = {
        socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 2, socket.TCP_USER_TIMEOUT: 3000,
    }  # fmt: skip
    assert quick.keys() == sql_store.PROBES.keys()
    monkeypatch.setattr(sql_store, "PROBES", quick)
    with Network() as network:
        node = network.node(1)
        node.start("python3", "-c", SERVER)
        wait_until(node.path("/tmp/ready").exists, 20)

        def cut() -> None:
            wait_until(node.path("/tmp/came").exists, 20)
            subprocess.run(["ip", "link", "set", network.bridge, "down"], check=True)

        cutter = threading.Thread(target=cut)
        cutter.start()
        began = time.monotonic()
        with pytest.raises(DatabaseGoneError, match="cannot be reached"):
            Store(f"mysql+pymysql://dart@{node.address}:{PORT}/dart", unavailable_timeout_s=1.0)
        cutter.join()
    assert time.monotonic() - began < 20
