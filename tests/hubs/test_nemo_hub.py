"""`integrations/nemo_gym`: the agent server, asked by NeMo Gym's own client, asks a model server through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from aiohttp import web

from tests.hubs.conftest import ROOT
from tests.hubs.seeing_oracle import images, reply

pytestmark = [pytest.mark.hubs]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def as_chat(asked: list[dict]) -> list[dict]:
    """Messages of the Responses API as those of the chat API."""

    def part(given: dict) -> dict:
        if given["type"] == "input_image":
            return {"type": "image_url", "image_url": {"url": given["image_url"]}}
        return {"type": "text", "text": given["text"]}

    return [
        {"role": m["role"], "content": m["content"] if isinstance(m["content"], str) else list(map(part, m["content"]))}
        for m in asked
    ]


@pytest.fixture
async def model():
    """A model server: what it was asked, its port, and the function that makes its replies."""
    told = {"asked": [], "answer": reply, "port": free_port()}

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        told["asked"].append(as_chat(body["input"]))
        said = told["answer"](told["asked"][-1])
        if said is None:
            return web.Response(status=500)
        if hasattr(said, "__await__"):
            said = await said
        content = [{"type": "output_text", "text": said, "annotations": []}]
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
        made = {"id": "r", "object": "response", "created_at": 0, "model": "stub", "output": [message]}
        return web.json_response({**made, "parallel_tool_calls": False, "tool_choice": "none", "tools": []})

    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/responses", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", told["port"]).start()
    yield told
    await runner.cleanup()


@pytest.fixture
async def ask(model, tcp_server, until):
    """Serves the agent as NeMo Gym does, and asks it for an episode by NeMo Gym's client; the answer."""
    import uvicorn
    from dart_gym_nemo import DesktopAgent, DesktopAgentConfig
    from nemo_gym import server_utils
    from nemo_gym.config_types import BaseServerConfig, ModelServerRef
    from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, get_response_json
    from omegaconf import OmegaConf

    port = free_port()
    places = {
        "policy_model": {"responses_api_models": {"stub": {"host": "127.0.0.1", "port": model["port"]}}},
        "desktop_agent": {"responses_api_agents": {"desktop_agent": {"host": "127.0.0.1", "port": port}}},
    }
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=OmegaConf.create(places)
    )
    config = DesktopAgentConfig(
        host="127.0.0.1", port=port, entrypoint="app.py", name="desktop_agent", url=tcp_server.url,
        model_server=ModelServerRef(type="responses_api_models", name="policy_model"),
    )  # fmt: skip
    app = DesktopAgent(config=config, server_client=client).setup_webserver()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)

    async def asked(task: str = "fake/two-steps", seed: int = 0, status: int = 200):
        row = {"responses_create_params": {"input": []}, "verifier_metadata": {"task": task, "seed": seed}}
        answer = await client.post(server_name="desktop_agent", url_path="/run", json=row)
        assert answer.status == status
        return await get_response_json(answer)

    connections = server_utils.set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    yield asked
    server.should_exit = True
    await serving
    await connections.close()
    server_utils._GLOBAL_AIOHTTP_CLIENT = None  # it belonged to this test's loop


async def test_an_oracles_episodes_score_1_in_parallel_and_carry_a_screenshot_per_step(ask, model, tcp_server, until):
    async def together(messages):
        if len(model["asked"]) <= 2:  # nobody is answered before the second one has asked
            await until(lambda: len(model["asked"]) >= 2)
            assert tcp_server.status()["sessions"] == 2
        return reply(messages)

    model["answer"] = together
    for told in await asyncio.gather(ask(seed=1), ask(seed=2)):
        assert (told["reward"], told["mask_sample"], told["terminal"]) == (1.0, False, "done")
        shown = [m for m in told["response"]["output"] if m["role"] == "user"]
        assert len(images(as_chat(shown))) == 2 and len(told["response"]["output"]) == 4
    await until(lambda: not tcp_server.status()["sessions"])


@pytest.mark.parametrize(("says", "terminal"), [("DONE", "done"), ("__import__('os')", "parse_error")])
async def test_who_does_nothing_scores_0(says, terminal, ask, model):
    model["answer"] = lambda messages: says
    told = await ask()
    assert (told["reward"], told["mask_sample"], told["terminal"]) == (0.0, False, terminal)


async def test_a_fault_masks_the_sample(ask, model, desktops):
    def crash(messages):
        desktops[-1].crash()
        return reply(messages)

    model["answer"] = crash
    told = await ask()
    assert told["mask_sample"] and "the environment lost the episode" in told["fault"]
    model["answer"] = lambda messages: None
    told = await ask()
    assert told["mask_sample"] and "the engine lost the episode" in told["fault"]


@pytest.mark.parametrize("task", ["/etc/passwd", "os:path/x", "runs/secret.json", "http://10.0.0.1"])
async def test_a_request_that_names_no_task_is_refused(task, ask, tcp_server):
    assert "detail" in await ask(task, status=422)
    assert not tcp_server.status()["sessions"]


async def test_the_desktop_of_a_client_that_goes_is_given_back(ask, model, tcp_server, until):
    model["answer"] = lambda messages: asyncio.Event().wait()
    asking = asyncio.create_task(ask())
    await until(lambda: model["asked"])
    assert tcp_server.status()["sessions"] == 1
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await until(lambda: not tcp_server.status()["sessions"])


@pytest.mark.timeout(420)
async def test_gym_env_start_starts_the_agent_and_a_model_server_which_play_an_episode(
    model, tcp_server, until, tmp_path
):
    """NeMo Gym's own command. This environment takes the place of those that it would make for the two servers."""
    folder, port = ROOT / "integrations/nemo_gym", free_port()
    for server in ("responses_api_agents/desktop_agent", "responses_api_models/openai_model"):
        (tmp_path / "venvs" / server).mkdir(parents=True)
        (tmp_path / "venvs" / server / ".venv").symlink_to(sys.prefix)
    agent = {"host": "127.0.0.1", "port": port, "url": tcp_server.url}
    hosted = {"entrypoint": "app.py", "openai_base_url": f"http://127.0.0.1:{model['port']}/v1"}
    hosted |= {"openai_api_key": "none", "openai_model": "stub"}
    given = {"desktop_agent": {"responses_api_agents": {"desktop_agent": agent}}}
    given |= {"policy_model": {"responses_api_models": {"openai_model": hosted}}}
    given |= {"skip_venv_if_present": True, "uv_venv_dir": str(tmp_path / "venvs")}
    given |= {"head_server": {"host": "127.0.0.1", "port": free_port()}}
    (tmp_path / "here.yaml").write_text(yaml.safe_dump(given))
    paths = f"responses_api_agents/desktop_agent/configs/desktop_agent.yaml,{tmp_path}/here.yaml"
    command = [str(Path(sys.prefix, "bin", "gym")), "env", "start", f"+config_paths=[{paths}]"]
    command += [f"hydra.run.dir={tmp_path}/outputs"]
    row = {"responses_create_params": {"input": []}, "verifier_metadata": {"task": "fake/two-steps", "seed": 3}}
    url, started = f"http://127.0.0.1:{port}/run", []

    async def up() -> bool:
        if not started or started[-1].returncode is not None:  # Ray gives itself 30 s to start: few on a busy machine
            assert len(started) < 4, "it ends whenever it is started"
            env = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"}
            options = {"cwd": folder, "env": env, "start_new_session": True}
            started.append(await asyncio.create_subprocess_exec(*command, **options))
        with contextlib.suppress(httpx.ConnectError):
            return bool((await http.get(url)).status_code)
        return False

    async def played() -> bool:
        answer = (await http.post(url, json=row)).json()
        return not answer["mask_sample"] and answer["reward"] == 1.0  # masked while the model server still starts

    try:
        async with httpx.AsyncClient(trust_env=False, timeout=120) as http:
            await until(up, 300)
            await until(played, 100)
            assert model["asked"]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()


def test_without_nemo_gym_the_import_says_what_to_install(without):
    said = without("nemo_gym", "integrations/nemo_gym", "dart_gym_nemo")
    assert said == "ImportError: NeMo Gym is not installed; next step: pip install 'nemo-gym>=0.4,<0.5' (Python 3.12)"
