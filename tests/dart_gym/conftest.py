"""Fixtures of the environments' tests: a way to wait for a condition, and one private cluster for many tests."""

from __future__ import annotations

import pytest
from waiting import wait_for

from dart_gym.cluster.background import background_loop
from dart_gym.cluster.local import acquire_shared, release_shared


@pytest.fixture
def until():
    """Waits until a function (or coroutine function) returns something true, and returns that."""
    return wait_for


@pytest.fixture(scope="module")
def one_private_cluster():
    """Keeps the private cluster up between tests, which would each start one otherwise."""
    background_loop().run(acquire_shared)
    yield
    background_loop().run(release_shared)
