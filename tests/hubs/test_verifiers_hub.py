"""`integrations/verifiers` by verifiers' own `vf-eval`, against an OpenAI server that the test starts."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from dart_gym.core.errors import UnrunnableTaskError
from tests.hubs.seeing_oracle import StubModel, calling, images, reply, tool_call

pytestmark = [pytest.mark.hubs, pytest.mark.timeout(240)]
VF_EVAL = Path(sys.executable).with_name("vf-eval")


@pytest.fixture
async def model():
    stub = StubModel()
    runner = await stub.start()
    yield stub
    await runner.cleanup()


@pytest.fixture
async def vf_eval(tmp_path, model):
    """Starts `vf-eval` on all of a suite's tasks; ended at the end if it still runs."""
    started = []

    async def start(url: str, *options: str) -> asyncio.subprocess.Process:
        command = [str(VF_EVAL), "dart-gym-verifiers", "--env.taskset.tasks", '["fake"]', "--env.url", url]
        command += ["--client.base-url", model.url, "--model", "stub", "--no-push", "--no-rich"]
        command += ["--output-dir", str(tmp_path), "--run.name", "r", *options]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def evaluate(tmp_path, model, tcp_server):
    """What `vf-eval` runs, in this process, on one task; its episode."""

    async def run(**env) -> dict:
        from verifiers.v1.cli.eval.runner import run_eval
        from verifiers.v1.configs.cli.eval import EvalConfig

        env = {"taskset": {"id": "dart-gym-verifiers", "tasks": ["fake/two-steps"]}, "url": tcp_server.url} | env
        client = {"base_url": model.url}
        where = {"output_dir": str(tmp_path), "run": {"name": "r"}, "push": False, "rich": None}
        (episode,) = await run_eval(EvalConfig.model_validate({"env": env, "model": "stub", "client": client, **where}))
        return episode.model_dump(mode="json")

    return run


def told(episode: dict) -> list[dict]:
    return [node["message"] for node in episode["traces"][0]["nodes"]]


async def test_an_oracles_episodes_score_1_in_parallel_and_carry_a_screenshot_per_step(
    vf_eval, model, tcp_server, until, tmp_path
):
    most = 0

    async def together(messages):
        nonlocal most
        if len(model.requests) <= 2:  # nobody is answered before the second one has asked
            await until(lambda: len(model.requests) >= 2, 60)
            most = max(most, tcp_server.status()["sessions"])
        return reply(messages)

    model.answer = together
    process = await vf_eval(tcp_server.url, "--env.taskset.seeds", "2")
    assert await process.wait() == 0
    lines = map(json.loads, (tmp_path / "r" / "traces.jsonl").read_text().splitlines())
    episodes = {episode["task"]["data"]["name"]: episode for episode in lines}
    assert set(episodes) == {f"fake/{task}#{seed}" for task in ("click-button", "two-steps") for seed in (0, 1)}
    assert most >= 2
    for name, episode in episodes.items():
        (trace,) = episode["traces"]
        steps = 2 if "two-steps" in name else 1
        assert episode["ok"] and trace["rewards"]["score_of_the_task"]["score"] == 1.0
        assert trace["metrics"]["actions"] == steps and trace["info"]["terminal"] == "done"
        assert sum(m["role"] == "assistant" for m in told(episode)) == steps
        assert len(images(told(episode))) == steps == len(set(images(told(episode))))
    assert sorted(len(images(request["messages"])) for request in model.requests) == [1, 1, 1, 1, 2, 2]
    await until(lambda: not tcp_server.status()["sessions"])


async def test_an_episode_without_actions_scores_0(evaluate, model):
    model.answer = lambda messages: "DONE"
    episode = await evaluate()
    assert episode["ok"] and episode["traces"][0]["rewards"]["score_of_the_task"]["score"] == 0.0


async def test_what_cannot_be_read_is_told_the_model_and_then_ends_the_episode(evaluate, model):
    model.answer = lambda messages: "__import__('os').system('true')"
    episode = await evaluate(patience=1)
    (trace,) = episode["traces"]
    assert episode["ok"] and trace["rewards"]["score_of_the_task"]["score"] == 0.0
    assert trace["info"]["terminal"] == "parse_error" and len(model.requests) == 2
    assert "Nothing was done: no action found" in str(model.requests[1]["messages"][-1])


async def test_a_fault_is_an_error_without_a_reward(evaluate, model, desktops):
    def crash(messages):
        desktops[-1].crash()
        return reply(messages)

    model.answer = crash
    episode = await evaluate()
    (trace,) = episode["traces"]
    assert not episode["ok"] and trace["errors"][-1]["type"] == "SandboxError"
    assert "the environment lost the episode" in trace["errors"][-1]["message"]
    assert not trace.get("rewards")


async def test_a_lost_episode_is_played_again_where_asked(evaluate, model, desktops):
    crashed = []

    def crash(messages):
        if not crashed:
            desktops[-1].crash()
            crashed.append(True)
        return reply(messages)

    model.answer = crash
    episode = await evaluate(retries={"max_retries": 1})
    assert episode["ok"] and episode["traces"][0]["rewards"]["score_of_the_task"]["score"] == 1.0


async def test_a_window_shows_the_newest_screenshots(evaluate, model):
    episode = await evaluate(player={"harness": {"id": "dart-gym-verifiers", "screenshots": 1}})
    assert episode["traces"][0]["rewards"]["score_of_the_task"]["score"] == 1.0
    assert [len(images(request["messages"])) for request in model.requests] == [1, 1]


BY_TOOLS = {"taskset": {"id": "dart-gym-verifiers", "tasks": ["fake/two-steps"], "tools": True}}


async def test_a_model_that_calls_tools_sees_the_screen_after_each(evaluate, model, tcp_server, until):
    model.answer = calling
    episode = await evaluate(**BY_TOOLS)
    (trace,) = episode["traces"]
    assert episode["ok"] and trace["rewards"]["score_of_the_task"]["score"] == 1.0
    assert trace["metrics"]["actions"] == 2 and trace["info"]["terminal"] == "done"
    assert [len(images(request["messages"])) for request in model.requests] == [1, 2]
    tools = {tool["function"]["name"] for tool in model.requests[0]["tools"]}
    assert {"click", "type", "press", "done"} <= tools and not tools & {"start", "score", "accessibility_tree"}
    assert "score" not in str(model.requests[1]["messages"][-1]["content"][0])
    await until(lambda: not tcp_server.status()["sessions"])


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("start", '{"task": "/etc/passwd"}', "there is no tool 'start'"),
        ("click", '{"x": ', "the arguments are no JSON"),
        ("click", '{"x": "__import__"}', "x"),
        ("click", "[1, 2]", "are no object"),
    ],
)
async def test_wrong_calls_are_told_the_model_and_do_nothing(name, arguments, says, evaluate, model):
    model.answer = lambda messages: "I cannot." if len(messages) > 3 else tool_call(name, arguments)
    episode = await evaluate(**BY_TOOLS)
    (trace,) = episode["traces"]
    assert episode["ok"] and trace["rewards"]["score_of_the_task"]["score"] == 0.0
    assert trace["metrics"]["actions"] == 0 and says in str(model.requests[1]["messages"][-1]["content"])


async def test_a_fault_beneath_a_tool_is_an_error_without_a_reward(evaluate, model, desktops):
    def crash(messages):
        desktops[-1].crash()
        return calling(messages)

    model.answer = crash
    episode = await evaluate(**BY_TOOLS)
    (trace,) = episode["traces"]
    assert not episode["ok"] and trace["errors"][-1]["type"] == "SandboxError" and not trace.get("rewards")


async def test_the_desktop_of_a_killed_evaluation_is_given_back(vf_eval, model, start_server, until):
    server = await start_server(listen="ws://127.0.0.1:0", open=True, grace_s=0.1)
    model.answer = lambda messages: asyncio.Event().wait()
    process = await vf_eval(server.url)
    await until(lambda: model.requests, 120)
    assert server.status()["sessions"]
    process.send_signal(signal.SIGKILL)
    await until(lambda: not server.status()["sessions"])


def test_of_a_suite_only_what_can_run_is_played(osworld):
    from dart_gym_verifiers import Desktops, DesktopsConfig

    assert [task.data.name for task in Desktops(DesktopsConfig(tasks=["osworld"])).load()] == ["osworld/plain#0"]
    with pytest.raises(UnrunnableTaskError, match="absent-program"):
        [*Desktops(DesktopsConfig(tasks=["osworld/absent"])).load()]


def test_without_verifiers_the_import_says_what_to_install(without):
    said = without("verifiers", "integrations/verifiers", "dart_gym_verifiers")
    assert said == "ImportError: verifiers is not installed; next step: pip install 'verifiers>=0.4,<0.5'"
