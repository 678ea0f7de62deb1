"""OpenEnv's own client on the cluster's port, and messages that it would not send."""

from __future__ import annotations

import asyncio
import base64
import io
import json

import numpy as np
import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st
from openenv.core import GenericEnvClient
from PIL import Image
from websockets.asyncio.client import connect

from dart_gym.cluster.client import ClusterClient
from dart_gym.cluster.openenv import MessageError, Translation
from dart_gym.desktops.fake import FakeDesktop

TASK = "fake/two-steps"


@pytest.fixture
async def server(start_server):
    return await start_server(listen="ws://127.0.0.1:0", desktops=2)


class Raw:
    """A websocket that speaks OpenEnv's messages by hand."""

    def __init__(self, connection) -> None:
        self.connection = connection

    async def ask(self, message) -> tuple[str, dict]:
        await self.connection.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
        answer = json.loads(await self.connection.recv())
        return answer["type"], answer["data"]


@pytest.fixture
async def raw(server):
    async with connect(f"{server.url}/ws", proxy=None) as connection:
        yield Raw(connection)


def screen(observation: dict) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(base64.b64decode(observation["screenshot"]))))


def center(desktop: FakeDesktop, label: str) -> tuple[int, int]:
    return next(button.center for button in desktop._buttons if button.label == label)


async def test_openenvs_client_plays_an_episode(server, desktops):
    async with ClusterClient(server.url).session() as session:
        expected = (await session.reset(TASK, seed=3)).observation
    async with GenericEnvClient(base_url=server.url) as env:
        result = await env.reset(task_id=TASK, seed=3)
        assert (result.reward, result.done) == (0.0, False)
        assert result.observation["instruction"] == expected.instruction
        assert np.array_equal(screen(result.observation), expected.screenshot)
        state = await env.state()
        assert state["step_count"] == 0 and state["task_id"] == TASK and state["seed"] == 3
        result = await env.step({"kind": "move", "x": 9999, "y": 1})
        assert "outside" in result.observation["action_error"] and not result.done
        for label in expected.instruction.split("'")[1::2]:
            x, y = center(desktops[-1], label)
            result = await env.step({"kind": "click", "x": x, "y": y, "metadata": {"thought": "there"}})
        assert (result.reward, result.done) == (1.0, True)
        assert result.observation["score"] == 1.0 and result.observation["terminal"] == "done"
        again = await env.state()
        assert again["step_count"] == 3 and again["episode_id"] == state["episode_id"]
        assert (await env.reset(task_id=TASK, episode_id="mine")).done is False
        assert (await env.state())["episode_id"] == "mine"
    assert server.status()["counters"]["step"] == 3


def test_openenvs_synchronous_client_works_too(server_thread):
    with GenericEnvClient(base_url=server_thread.url).sync() as env:
        assert env.reset(task_id=TASK, seed=1).observation["width"] == 168
        assert env.step({"kind": "done"}).done


@pytest.fixture
def server_thread(tmp_path):
    from dart_gym.cluster.background import background_loop
    from dart_gym.cluster.server import ClusterServer, ServerSettings

    server = ClusterServer(ServerSettings("ws://127.0.0.1:0", desktops=1), FakeDesktop)
    background_loop().run(server.start)
    yield server
    background_loop().run(server.stop)


async def test_a_fault_of_the_desktop_has_no_reward(server, desktops):
    async with GenericEnvClient(base_url=server.url) as env:
        await env.reset(task_id=TASK, seed=0)
        desktops[-1].crash()
        result = await env.step({"kind": "move", "x": 1, "y": 1})
        assert (result.reward, result.done) == (None, True) and result.observation["env_fault"]
        assert not (await env.reset(task_id=TASK, seed=0)).done


async def test_a_client_that_goes_gives_its_desktop_back(server, until):
    connection = await connect(f"{server.url}/openenv/ws", proxy=None)
    await Raw(connection).ask({"type": "reset", "data": {"task_id": TASK}})
    await connection.send(json.dumps({"type": "step", "data": {"kind": "wait", "seconds": 0.2}}))
    connection.transport.abort()
    await until(lambda: server.status()["sessions"] == 0)
    assert {desktop["phase"] for desktop in server.status()["desktops"]} == {"idle"}


async def test_a_full_cluster_says_so(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", desktops=1)
    async with GenericEnvClient(base_url=server.url) as env, GenericEnvClient(base_url=server.url) as other:
        await env.reset(task_id=TASK)
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            await other.reset(task_id=TASK, deadline_s=0.1)
        await env.close()
        assert not (await other.reset(task_id=TASK)).done


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        ("{", "INVALID_JSON", "not JSON"),
        (b"\xff\x00", "INVALID_JSON", "not JSON"),
        ([], "VALIDATION_ERROR", "object"),
        ({"type": "mcp", "data": {}}, "UNKNOWN_TYPE", "known: reset"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE", "known: reset"),
        ({"type": "reset", "data": [1]}, "VALIDATION_ERROR", "object"),
        ({"type": "reset", "data": {"seed": "x"}}, "VALIDATION_ERROR", "seed"),
        ({"type": "reset", "data": {"seed": 1 << 80}}, "VALIDATION_ERROR", "seed"),
        ({"type": "reset", "data": {"taskid": "x"}}, "VALIDATION_ERROR", "known: seed"),
        ({"type": "reset", "data": {"task_id": "fake/two-stps"}}, "VALIDATION_ERROR", "fake/two-steps"),
        ({"type": "reset", "data": {"task_id": TASK, "task": {}}}, "VALIDATION_ERROR", "not both"),
        ({"type": "reset", "data": {"task_id": TASK, "width": 1}}, "VALIDATION_ERROR", "width"),
        ({"type": "step", "data": {"kind": "move", "x": 1, "y": 1}}, "SESSION_ERROR", "reset"),
    ],
)
async def test_what_is_wrong_is_answered_and_the_session_goes_on(raw, message, code, says):
    kind, data = await raw.ask(message)
    assert (kind, data["code"]) == ("error", code) and says in data["message"]
    assert (await raw.ask({"type": "reset", "data": {"task_id": TASK}}))[0] == "observation"


async def test_a_wrong_action_is_answered_and_the_episode_goes_on(raw):
    await raw.ask({"type": "reset", "data": {"task_id": TASK}})
    for data in ({"kind": "clik"}, {}, {"kind": "type", "text": 5}):
        assert (await raw.ask({"type": "step", "data": data}))[1]["code"] == "VALIDATION_ERROR"
    _, data = await raw.ask({"type": "step", "data": {"kind": "move", "x": 1, "y": 1}})
    assert not data["done"] and (await raw.ask({"type": "state"}))[1]["step_count"] == 1


@given(st.text() | st.binary() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(repr))
def test_any_text_is_a_request_or_an_error(text):
    try:
        found = Translation().request(text)
    except MessageError as error:
        assert error.code in {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"}
    else:
        assert isinstance(found, (bytes, str))


async def test_a_token_is_needed_where_the_cluster_has_one(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", token="s3cret")
    host = server.url.removeprefix("ws://")
    for url in (f"ws://{host}", f"ws://any:wrong@{host}"):
        with pytest.raises(ConnectionError, match="401"):
            async with GenericEnvClient(base_url=url):
                pass
    async with GenericEnvClient(base_url=f"ws://any:s3cret@{host}") as env:  # it has no other way to show one
        assert not (await env.reset(task_id=TASK)).done
    headers = {"Authorization": "Bearer s3cret"}
    async with connect(f"ws://{host}/ws", proxy=None, additional_headers=headers) as connection:
        assert (await Raw(connection).ask({"type": "state"}))[0] == "state"


async def test_the_server_says_goodbye(server):
    connection = await connect(f"{server.url}/ws", proxy=None)
    await Raw(connection).ask({"type": "reset", "data": {"task_id": TASK}})
    stopping = asyncio.create_task(server.stop())
    answer = json.loads(await connection.recv())
    assert answer["type"] == "error" and answer["data"]["code"] == "SESSION_ERROR"
    with pytest.raises(websockets.ConnectionClosed):
        await connection.recv()
    await stopping
