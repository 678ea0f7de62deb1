"""`integrations/openenv` by OpenEnv's own packages: its server with our environment, its client, its checks."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from openenv_wire import TASK

from dart_gym.core.actions import Click, Done, Move
from tests.dart_gym.waiting import wait_for

pytestmark = [pytest.mark.openenv, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "integrations" / "openenv"


@pytest.fixture
def space(tcp_server, monkeypatch):
    """Address of OpenEnv's server over the desktops of a cluster."""
    import uvicorn
    from server.app import app

    monkeypatch.setenv("DART_GYM_URL", tcp_server.url)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not (server.started and server.servers):
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(params=["space", "cluster"])
def address(request, tcp_server):
    """Both servers that the client speaks to."""
    return request.getfixturevalue("space") if request.param == "space" else tcp_server.url


def client(address: str):
    from dart_gym_openenv import DesktopClient

    return DesktopClient(base_url=address)


async def play(env, desktops, seed: int, *, oracle: bool):
    """An episode by clicks in the middle of what is asked for, or one that ends at once; its last result."""
    seen = (await env.reset(task_id=TASK, seed=seed)).observation
    if not oracle:
        return await env.step(Done())
    buttons = next(d.buttons for d in desktops if seen.instruction in _asked(d, seen.instruction))
    centers = {button.label: button.center for button in buttons}
    for label in re.findall("'(.+?)'", seen.instruction):
        result = await env.step(Click(*centers[label]))
    return result


def _asked(desktop, instruction: str) -> str:
    """The instruction, where the desktop shows all that it names in its colors."""
    from dart_gym.tasks.suites.fake_suite import COLORS

    shown = {(button.label, button.color) for button in desktop.buttons}
    named = {(label, COLORS[color]) for color, label in re.findall(r"the (\w+) button '(.+?)'", instruction)}
    return instruction if named <= shown else ""


async def test_an_oracle_scores_1_and_doing_nothing_0(address, desktops):
    from dart_gym_openenv import DesktopAction

    async with client(address) as env:
        result = await play(env, desktops, 3, oracle=True)
        seen = result.observation
        assert (result.reward, result.done, seen.score, seen.terminal) == (1.0, True, 1.0, "done")
        state = await env.state()
        assert (state.task_id, state.seed, state.step_count, state.terminal) == (TASK, 3, 2, "done")
        result = await play(env, desktops, 3, oracle=False)
        assert (result.reward, result.done, result.observation.evaluation_status) == (0.0, True, "ok")
        seen = (await env.reset(task_id=TASK, seed=3, episode_id="mine")).observation
        assert seen.png[:4] == b"\x89PNG" and (seen.width, seen.height) == (168, 224)
        assert (await env.state()).episode_id == "mine"
        seen = (await env.step(DesktopAction(kind="move", x=9999, y=1))).observation
        assert "outside" in seen.action_error


async def test_episodes_play_side_by_side(space, desktops):
    async with client(space) as one, client(space) as other:
        results = await asyncio.gather(*(play(env, desktops, 5 + i, oracle=True) for i, env in enumerate((one, other))))
    assert [result.reward for result in results] == [1.0, 1.0]


async def test_a_fault_of_the_desktop_has_no_reward(address, desktops):
    async with client(address) as env:
        await env.reset(task_id=TASK, seed=0)
        desktops[-1].crash()
        result = await env.step(Move(1, 1))
        assert (result.reward, result.done, result.observation.env_fault) == (None, True, True)
        assert not (await env.reset(task_id=TASK, seed=0)).done


async def test_a_client_that_is_gone_gives_its_desktop_back(space, tcp_server):
    env = client(space)
    await env.reset(task_id=TASK)
    assert tcp_server.status()["sessions"] == 1
    env._ws.transport.abort()
    await wait_for(lambda: tcp_server.status()["sessions"] == 0)


@pytest.mark.parametrize(
    ("task_id", "action", "said"),
    [
        ("/etc/passwd.json", {}, "names no task of a suite"),
        ("os:system/x", {}, "names no task of a suite"),
        (TASK, {"kind": "detonate"}, "VALIDATION_ERROR"),
        (TASK, {"kind": "click", "x": "here"}, "VALIDATION_ERROR"),
        (TASK, {"type": "call_tool"}, "VALIDATION_ERROR"),
    ],
)
async def test_what_is_wrong_is_refused_and_the_session_goes_on(space, task_id, action, said):
    from openenv.core import GenericEnvClient

    async with GenericEnvClient(base_url=space) as env:
        with pytest.raises(RuntimeError, match=said):
            await env.reset(task_id=task_id)
            await env.step(action)
        assert not (await env.reset(task_id=TASK)).done


async def test_mcp_messages_list_and_call_the_typed_actions(space):
    from openenv.core.mcp_client import MCPToolClient

    async with MCPToolClient(base_url=space) as env:
        await env.reset(task_id=TASK, seed=3)
        names = {tool.name for tool in await env.list_tools()}
        assert {"click", "type", "press", "done"} <= names and not names & {"reset", "step", "state", "close"}
        told = await env.call_tool("move", x=3, y=3)
        assert told["instruction"].startswith("Click the") and told["done"] is False and told["score"] is None
        with pytest.raises(RuntimeError, match="explode"):
            await env.call_tool("explode")
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "done", "arguments": {}}}
        answer = (await env._send_and_receive({"type": "mcp", "data": call}))["data"]
        assert answer["id"] == 7 and answer["result"]["content"][1]["mime_type"] == "image/png"
        assert answer["result"]["structured_content"]["score"] == 0.0


async def test_openenvs_own_checks_pass(space):
    from openenv.cli._validation import get_deployment_modes, validate_running_environment

    report = await asyncio.to_thread(validate_running_environment, space, 60.0)
    assert report["passed"], report
    assert get_deployment_modes(FOLDER)["docker"]


async def test_the_run_of_the_readme_works(space, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", space)
    command = [sys.executable, "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.stdout.startswith("Click the") and done.stdout.endswith(" True\n"), done.stderr


def test_without_openenv_the_import_says_what_to_install():
    program = "import sys; sys.modules['openenv'] = None; import dart_gym_openenv"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, cwd=ROOT)
    said = done.stderr.splitlines()[-1]
    assert said == "ImportError: OpenEnv is not installed; next step: pip install 'openenv-core>=0.3,<0.4'"
