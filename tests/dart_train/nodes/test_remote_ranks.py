"""The ranks of several nodes as one program: the others begin when the first listens, and all end together."""

import signal
import subprocess

import pytest

from dart_train.nodes.program_host import HOST, PORT
from dart_train.nodes.remote_ranks import RemoteRanks


class Program:
    """One node's, as a test lets it go on."""

    name = "learn"

    def __init__(self, host: str) -> None:
        self.host, self.started, self.returncode, self.told = host, None, None, []

    @property
    def node(self) -> str:
        return self.host if self.started else ""

    def begin(self) -> None:
        self.started = {HOST: self.host, PORT: "29500"}

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.told.append(signal.SIGTERM)

    def kill_all(self) -> None:
        if self.returncode is None:
            self.returncode = -signal.SIGKILL


@pytest.fixture
def nodes() -> list[Program]:
    return [Program(f"10.0.0.{host}") for host in (1, 2, 3)]


@pytest.fixture
def ranks(nodes) -> RemoteRanks:
    told = []

    def others(address: dict[str, str]) -> list[Program]:
        assert address == {HOST: "10.0.0.1", PORT: "29500"} and not told
        told.append(address)
        return nodes[1:]

    return RemoteRanks(nodes[0], others, 3)


def test_the_others_meet_the_first_once_it_listens(ranks, nodes):
    assert ranks.poll() is None and ranks.node == ""
    nodes[0].begin()
    assert ranks.poll() is None and ranks.poll() is None  # started once
    nodes[1].begin()
    assert ranks.node == "10.0.0.1, 10.0.0.2"
    ranks.terminate()
    assert [node.told for node in nodes] == [[signal.SIGTERM]] * 3


def test_it_has_ended_well_when_all_have(ranks, nodes):
    nodes[0].begin()
    ranks.poll()
    for node in nodes:
        assert ranks.poll() is None
        node.returncode = 0
    assert ranks.wait(1) == 0


def test_where_one_fails_the_others_end_as_it_did(ranks, nodes):
    nodes[0].begin()
    ranks.poll()
    nodes[2].returncode = 78
    assert ranks.poll() == 78 == ranks.returncode
    assert nodes[0].returncode == nodes[1].returncode == -signal.SIGKILL


def test_a_first_one_that_never_begins_can_be_given_up(ranks, nodes):
    with pytest.raises(subprocess.TimeoutExpired):
        ranks.wait(0)
    ranks.kill_all()
    assert ranks.wait(1) == -signal.SIGKILL
