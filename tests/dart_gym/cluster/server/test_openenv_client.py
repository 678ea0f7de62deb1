"""OpenEnv's own client on the cluster's port.

It brings gradio, pandas and seventy more, so these tests have a Python environment of their own: `make test-openenv`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openenv_wire import TASK, Raw
from PIL import Image
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.desktops.fake_desktop import FakeDesktop

pytestmark = pytest.mark.openenv
PAGE = Path(__file__).parents[4] / "docs" / "guides" / "cluster.md"


def openenv_client(url: str, **options: Any):
    from openenv.core import GenericEnvClient  # here, so that these tests can be collected without it

    return GenericEnvClient(base_url=url, **options)


def screen(observation: dict) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(base64.b64decode(observation["screenshot"]))))


def center(desktop: FakeDesktop, label: str) -> tuple[int, int]:
    return next(button.center for button in desktop.buttons if button.label == label)


def test_the_pages_example_prints_what_it_says(capsys):
    (code,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [line.strip() for line in re.findall(r"print\(.*\)\s+# (.+)", code)]


async def test_openenvs_client_plays_an_episode(tcp_server, desktops):
    async with ClusterClient(tcp_server.url).session() as session:
        expected = (await session.reset(TASK, seed=3)).observation
    async with openenv_client(tcp_server.url) as env:
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
    assert tcp_server.status()["counters"]["step"] == 3


def test_openenvs_synchronous_client_works_too(server_thread):
    with openenv_client(server_thread.url).sync() as env:
        assert env.reset(task_id=TASK, seed=1).observation["width"] == 168
        assert env.step({"kind": "done"}).done


@pytest.fixture
def server_thread(tmp_path):
    from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
    from dart_gym.envs.cluster_link import background_loop

    server = ClusterServer(ServerSettings(listen="ws://127.0.0.1:0", desktops=1, open=True), FakeDesktop)
    background_loop().run(server.start)
    yield server
    background_loop().run(server.stop)


async def test_a_large_screen_arrives_whole(tcp_server):
    async with ClusterClient(tcp_server.url).session() as session:
        expected = (await session.reset(TASK, seed=2, desktop={"width": 1920, "height": 1080})).observation.screenshot
    async with openenv_client(tcp_server.url) as env:
        result = await env.reset(task_id=TASK, seed=2, width=1920, height=1080)
        assert np.array_equal(screen(result.observation), expected)


async def test_a_fault_of_the_desktop_has_no_reward(tcp_server, desktops):
    async with openenv_client(tcp_server.url) as env:
        await env.reset(task_id=TASK, seed=0)
        desktops[-1].crash()
        result = await env.step({"kind": "move", "x": 1, "y": 1})
        assert (result.reward, result.done) == (None, True) and result.observation["env_fault"]
        assert not (await env.reset(task_id=TASK, seed=0)).done


async def test_answers_stay_with_their_messages_after_a_timeout(tcp_server):
    async with openenv_client(tcp_server.url, message_timeout_s=2.0) as env:
        await env.reset(task_id=TASK, seed=0)
        with pytest.raises(asyncio.TimeoutError):
            await env.step({"kind": "wait", "seconds": 3.0})
        assert not (await env.step({"kind": "move", "x": 1, "y": 1})).done
        assert (await env.step({"kind": "done"})).done
        assert (await env.state())["step_count"] == 3


async def test_the_client_does_not_reconnect_by_itself(start_server):
    """Their issue 1103. If this fails, it does so now: delete this test and the paragraph of docs/guides/cluster.md."""
    server = await start_server(listen="ws://127.0.0.1:0", open=True)
    url = server.url
    env = openenv_client(url)
    await env.reset(task_id=TASK)
    await server.stop()
    await start_server(listen=url, open=True)
    for _ in range(2):
        with pytest.raises(ConnectionClosed):
            await env.reset(task_id=TASK)
    await env.disconnect()
    assert not (await env.reset(task_id=TASK)).done
    await env.close()


async def test_a_full_cluster_says_so(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", desktops=1, open=True)
    async with openenv_client(server.url) as env, openenv_client(server.url) as other:
        await env.reset(task_id=TASK)
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            await other.reset(task_id=TASK, deadline_s=0.1)
        await env.close()
        assert not (await other.reset(task_id=TASK)).done


async def test_a_token_is_needed_where_the_cluster_has_one(start_server):
    server = await start_server(listen="ws://127.0.0.1:0", token="s3cret")
    host = server.url.removeprefix("ws://")
    for url in (f"ws://{host}", f"ws://any:wrong@{host}"):
        with pytest.raises(ConnectionError, match="401"):
            async with openenv_client(url):
                pass
    async with openenv_client(f"ws://any:s3cret@{host}") as env:  # it has no other way to show one
        assert not (await env.reset(task_id=TASK)).done
    headers = {"Authorization": "Bearer s3cret"}
    async with connect(f"ws://{host}/ws", proxy=None, additional_headers=headers) as connection:
        assert (await Raw(connection).ask({"type": "state"}))[0] == "state"
