"""Nodes that are joined to a Ray cluster by the tests."""

from collections.abc import Iterator

import pytest

from tests.dart_train.nodes.cluster_of_nodes import Cluster
from tests.dart_train.nodes.separate_nodes import Network
from tests.helpers.object_store import s3_bucket


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with its services, which has not joined a Ray cluster yet."""
    with Network() as network, pytest.MonkeyPatch.context() as patch:
        made = Cluster(network)
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """URL of a bucket on this machine."""
    with s3_bucket() as url:
        yield url
