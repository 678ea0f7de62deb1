"""`integrations/openenv_port`, installed: OpenEnv's messages by hand, right and wrong ones, clients that go away."""

from __future__ import annotations

import asyncio
import json

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st
from openenv_wire import TASK, Raw
from websockets.asyncio.client import connect

from dart_gym.cluster.server.client_protocols import CLIENT_PROTOCOLS, protocols_by_path
from dart_gym.core.errors import PluginError
from tests.helpers.packages import INTEGRATIONS, install, installed

pytestmark = pytest.mark.process  # pip installs the package


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory):
    with installed(INTEGRATIONS / "openenv_port", tmp_path_factory.mktemp("openenv_port")):
        yield


@pytest.fixture
async def raw(tcp_server):
    async with connect(f"{tcp_server.url}/ws", proxy=None) as connection:
        yield Raw(connection)


def test_its_entry_point_gives_the_protocol_its_paths():
    assert CLIENT_PROTOCOLS.describe() == {"openenv": "package dart-gym-openenv-port"}
    assert set(protocols_by_path()) == {"/ws", "/openenv/ws"}


async def test_two_protocols_with_one_path_refuse_the_start(start_server, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "another", {"dart_gui.client_protocols": {"mine": "dart_gym_openenv_port:OpenEnvConnection"}})
    with pytest.raises(PluginError, match="have the path /ws"):
        await start_server(listen="ws://127.0.0.1:0", open=True)


async def test_a_client_that_goes_gives_its_desktop_back(tcp_server, until):
    connection = await connect(f"{tcp_server.url}/openenv/ws", proxy=None)
    await Raw(connection).ask({"type": "reset", "data": {"task_id": TASK}})
    await connection.send(json.dumps({"type": "step", "data": {"kind": "wait", "seconds": 0.2}}))
    connection.transport.abort()
    await until(lambda: tcp_server.status()["sessions"] == 0)
    assert {desktop["phase"] for desktop in tcp_server.status()["desktops"]} == {"idle"}


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
        ({"type": "reset", "data": {"task_id": TASK, "pacing": "slow"}}, "VALIDATION_ERROR", "unknown pacing"),
        ({"type": "reset", "data": {"task_id": "/etc/task.json"}}, "VALIDATION_ERROR", "send its content"),
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


async def test_an_answer_that_its_client_does_not_wait_for_is_dropped(raw):
    await raw.ask({"type": "reset", "data": {"task_id": TASK}})
    await raw.connection.send(json.dumps({"type": "step", "data": {"kind": "wait", "seconds": 0.3}}))
    assert (await raw.ask({"type": "state"}))[0] == "state"
    await raw.connection.send(json.dumps({"type": "step", "data": {"kind": "wait", "seconds": 0.3}}))
    kind, data = await raw.ask({"type": "step", "data": {"kind": "done"}})
    assert kind == "observation" and data["done"]
    assert (await raw.ask({"type": "state"}))[1]["step_count"] == 3


@given(st.text() | st.binary() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(repr))
def test_any_text_is_a_request_or_an_error(text):
    from dart_gym_openenv_port import MessageError, Translation

    try:
        found = Translation().request(text)
    except MessageError as error:
        assert error.code in {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"}
    else:
        assert isinstance(found, (bytes, str))


async def test_the_server_says_goodbye(tcp_server):
    connection = await connect(f"{tcp_server.url}/ws", proxy=None)
    await Raw(connection).ask({"type": "reset", "data": {"task_id": TASK}})
    stopping = asyncio.create_task(tcp_server.stop())
    answer = json.loads(await connection.recv())
    assert answer["type"] == "error" and answer["data"]["code"] == "SESSION_ERROR"
    with pytest.raises(websockets.ConnectionClosed):
        await connection.recv()
    await stopping
