"""A server that speaks S3's protocol, with one bucket; credentials and address are in the environment."""

from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest


@contextmanager
def s3_bucket() -> Iterator[str]:
    """Serve, and yield the bucket's URL."""
    from moto.server import ThreadedMotoServer  # half a second: for its users alone

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in address.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()  # of a server before
        fsspec.filesystem("s3").makedirs("dart-bucket", exist_ok=True)
        yield "s3://dart-bucket"
    server.stop()
