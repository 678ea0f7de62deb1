"""A database and an object store for nodes of a test, as a program on the head: `head_services.py FOLDER ADDRESS`."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from tests.dart_train.nodes.cluster_of_nodes import BUCKET, PORT, SECRET, STORE_PORT
from tests.helpers.mariadb import MariaDB


def main(folder: Path, address: str) -> None:
    """Serve both until SIGTERM; the file `ready` says that they answer."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = ("--skip-skip-networking", f"--port={PORT}", f"--bind-address={address}")
    with MariaDB(folder / "database", options=options) as database:
        database.execute("CREATE DATABASE IF NOT EXISTS dart CHARACTER SET utf8mb4")
        database.execute(f"CREATE USER IF NOT EXISTS 'dart'@'%' IDENTIFIED BY '{SECRET}'")
        database.execute("GRANT ALL ON dart.* TO 'dart'@'%'")
        store = ThreadedMotoServer(address, STORE_PORT)
        store.start()
        url = f"http://{address}:{STORE_PORT}"
        boto3.client("s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b").create_bucket(
            Bucket=BUCKET
        )
        (folder / "ready").touch()
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
