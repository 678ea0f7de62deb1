"""Screens by memory that the server of this machine and its client share."""

import dataclasses
import os
import socket

import numpy as np
import pytest

from dart_gym.cluster.client import cluster_servers
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.shared_frames import SHARED, FrameReceiver, FrameSender, offer_of, offers, peer_of, taken
from dart_gym.core.actions import Move
from dart_gym.core.errors import DesktopError, ProtocolError
from dart_gym.desktops.base.frame_memory import FrameMemory

TASK = "fake/two-steps"


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_pixels_arrive_as_they_were_whatever_the_size_and_are_the_receivers_own():
    sender, receiver = FrameSender(), FrameReceiver(os.getpid())
    taken = []
    for number, size in enumerate([(40, 30), (40, 30), (50, 70), (40, 30)]):
        image = picture(*size, number)
        taken.append((image, receiver.get(sender.put(image))))
    assert all(np.array_equal(sent, got) and got.flags.owndata for sent, got in taken)


@pytest.mark.parametrize(
    "change",
    [
        {3: "/proc/1/fd/1"},
        {3: "/etc/passwd"},
        {3: "/proc/self/fd/0"},
        {1: 41},
        {2: 1 << 40},
        {1: -1},
        {1: True},
        {3: 7},
    ],
)
def test_a_wrong_description_opens_nothing(change):
    description = FrameSender().put(picture(40, 30))
    for place, value in change.items():
        description[place] = value
    with pytest.raises(ProtocolError):
        FrameReceiver(os.getpid()).get(description)
    with pytest.raises(ProtocolError):
        FrameReceiver(os.getpid()).get(description[:3])


def test_memory_that_could_be_cut_is_not_mapped():
    fd = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 30)
    with pytest.raises(DesktopError, match="not as it was made"):
        FrameMemory(fd, 5, 2, writable=False)


def test_sealed_memory_keeps_its_size():
    memory = FrameMemory.create(5, 2)
    for size in (0, 29, 31):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)


def test_only_a_unix_socket_of_this_user_has_a_peer():
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket() as other:
        assert peer_of(ours) == os.getpid() and peer_of(other) == 0
        assert offers(ours) == (offer_of(os.getpid()),) and offers(other) == ()


def test_a_server_takes_the_offer_of_its_own_memory_alone():
    elsewhere = [offer_of(os.getppid()), f"shared pid:[1] {os.getpid()}", SHARED]
    assert taken([*elsewhere[:2], "raw"]) == (*elsewhere[:2], "raw") and taken(elsewhere[2:]) == ()
    assert taken([offer_of(os.getpid()), "raw"]) == (SHARED, "raw")


@pytest.fixture
async def start(tmp_path):
    """Starts servers."""
    servers = []

    async def start(listen):
        server = ClusterServer(ServerSettings(listen=listen, desktops=2))
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


@pytest.mark.parametrize(("listen", "codec"), [("ws+unix://{}/sock", SHARED), ("ws://127.0.0.1:0", "raw")])
async def test_a_client_of_this_machine_gets_the_same_pixels_by_memory_or_bytes(start, tmp_path, listen, codec):
    server = await start(listen.format(tmp_path))
    ways = [ClusterClient(server.url), ClusterClient(server.url, settings=ClientSettings(codecs=("png",)))]
    shown = []
    for client in ways:
        async with client.session() as session:
            seen = [(await session.reset(TASK, seed=3)).observation.screenshot]
            seen += [(await session.step(Move(10 * number, 20))).observation.screenshot for number in range(4)]
            shown.append(seen)
            used = [served.codec for served in server.sessions]
            assert used == [codec if client is ways[0] else "png"]
    for by_default, by_png in zip(*shown, strict=True):
        assert np.array_equal(by_default, by_png)
    assert len({frame.tobytes() for frame in shown[0]}) > 1, "frames that were kept are not overwritten by later ones"


async def test_a_session_goes_on_by_bytes_where_memory_is_not_shared_any_more(start, tmp_path, monkeypatch):
    server = await start(f"ws+unix://{tmp_path}/sock")
    async with ClusterClient(server.url).session() as session:
        first = await session.reset(TASK, seed=3)
        (served,) = server.sessions
        assert served.codec == SHARED
        monkeypatch.setattr(cluster_servers, "offers", lambda connection: ())
        session.connection.transport.abort()
        second = await session.step(Move(50, 60))
        assert served.codec == "raw" and second.observation.screenshot.shape == first.observation.screenshot.shape
        assert not np.array_equal(second.observation.screenshot, first.observation.screenshot)


async def test_the_last_reply_is_the_same_by_bytes(start, tmp_path):
    server = await start(f"ws+unix://{tmp_path}/sock")
    async with ClusterClient(server.url).session() as session:
        result = await session.reset(TASK, seed=3)
        (served,) = server.sessions
        served.go_on_by_bytes(["png"])
        again = frames.step_result(frames.decode_reply(served.last_reply))
    assert np.array_equal(again.observation.screenshot, result.observation.screenshot)
    assert dataclasses.replace(again, observation=result.observation) == result
