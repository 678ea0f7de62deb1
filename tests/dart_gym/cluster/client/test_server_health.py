"""Looking at a server that answers, hangs, or is not there; and a private cluster that is replaced."""

import os
import signal
import socket

import pytest

from dart_gym.cluster.client import private_cluster
from dart_gym.cluster.client.private_cluster import LocalCluster
from dart_gym.cluster.client.server_health import Health, Patience, look_at
from dart_gym.core.errors import ClusterError
from tests.helpers.parameters import slow_but


def test_patience_ends_with_silence_alone():
    patience = Patience(most_silences=3)
    assert not any(patience.is_over(found) for found in (Health.ABSENT,) * 10), "it is starting"
    assert not patience.is_over(Health.SILENT) and not patience.is_over(Health.SILENT)
    assert not patience.is_over(Health.ANSWERS)
    assert [patience.is_over(Health.ABSENT) for _ in range(3)] == [False, False, True], "it answered before"


def test_a_server_that_accepts_and_says_nothing_is_silent(tmp_path):
    assert look_at(tmp_path / "none") is Health.ABSENT
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        assert look_at(tmp_path / "sock") is Health.ABSENT
        listener.listen(1)
        assert look_at(tmp_path / "sock", patience_s=0.1) is Health.SILENT


async def answers(cluster: LocalCluster) -> bool:
    """Whether a client gets through."""
    try:
        return bool(await cluster.client().status())
    except ClusterError:
        return False


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("number", slow_but([signal.SIGKILL], [signal.SIGKILL, signal.SIGSTOP]))
async def test_a_private_cluster_that_ends_or_hangs_is_replaced(monkeypatch, until, number):
    monkeypatch.setattr(private_cluster, "PERIOD_S", 0.1)
    monkeypatch.setattr(private_cluster, "look_at", lambda path: look_at(path, patience_s=0.5))
    async with LocalCluster(1) as cluster:
        first = cluster.pid
        assert await answers(cluster)
        os.kill(first, number)
        await until(lambda: cluster.pid not in (None, first))

        async def back() -> bool:
            return await answers(cluster)

        await until(back)
