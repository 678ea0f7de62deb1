"""`integrations/inspect` by Inspect's own `eval`, with its mock model."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from dart_gym.core.errors import UnrunnableTaskError
from tests.hubs.seeing_oracle import StubModel, reply

pytestmark = [pytest.mark.hubs]


def as_chat(messages) -> list[dict]:
    """Inspect's messages as OpenAI writes them."""

    def part(given) -> dict:
        if given.type == "image":
            return {"type": "image_url", "image_url": {"url": given.image}}
        return {"type": "text", "text": given.text}

    contents = [m.content if isinstance(m.content, str) else list(map(part, m.content)) for m in messages]
    return [{"role": m.role, "content": content} for m, content in zip(messages, contents, strict=True)]


@pytest.fixture
def evaluate(tcp_server, tmp_path):
    """Runs Inspect's `eval_async` with a model that answers by a function; the log."""

    async def run(answer, tasks="fake/two-steps", options=None, **given):
        import dart_gym_inspect
        from inspect_ai import eval_async
        from inspect_ai.model import ModelOutput, ModelUsage, get_model

        def said(messages, *_):
            made = ModelOutput.from_content("mockllm", answer(as_chat(messages)))
            made.usage = ModelUsage()  # or it would be counted, by a tokenizer that is downloaded
            return made

        model = get_model("mockllm/model", custom_outputs=said)
        task = dart_gym_inspect.desktops(tasks=tasks, url=tcp_server.url, **(options or {}))
        (log,) = await eval_async(task, model=model, log_dir=str(tmp_path), **given)
        return log

    return run


async def test_an_oracles_samples_score_1_and_their_conversations_show_every_screen(evaluate, tcp_server, until):
    most = 0

    def watched(messages):
        nonlocal most
        most = max(most, tcp_server.status()["sessions"])
        return reply(messages)

    log = await evaluate(watched, tasks="fake", options={"seeds": 2})
    assert log.status == "success" and log.results.scores[0].metrics["mean"].value == 1.0
    assert most >= 2
    assert len(log.samples) == 4
    for sample in log.samples:
        steps = 2 if "two-steps" in sample.id else 1
        shown = [part for m in sample.messages if isinstance(m.content, list) for part in m.content]
        assert sum(part.type == "image" for part in shown) == steps == sample.metadata["actions"]
    await until(lambda: not tcp_server.status()["sessions"])


async def test_a_sample_without_actions_scores_0(evaluate):
    log = await evaluate(lambda messages: "DONE")
    assert log.status == "success" and log.results.scores[0].metrics["mean"].value == 0.0


async def test_what_cannot_be_read_ends_the_episode(evaluate):
    log = await evaluate(lambda messages: "__import__('os').system('true')")
    assert log.samples[0].scores["evaluator"].value == 0.0
    assert log.samples[0].metadata["terminal"] == "parse_error"


async def test_a_window_shows_the_newest_screens(evaluate):
    shown = []

    def watched(messages):
        shown.append(str(messages).count("image_url'"))
        return reply(messages)

    log = await evaluate(watched, options={"screenshots": 1})
    assert log.results.scores[0].metrics["mean"].value == 1.0 and len(set(shown)) == 1


async def test_a_fault_is_a_samples_error_without_a_score_and_is_retried_where_asked(evaluate, desktops):
    crashes = 0

    def crash(messages):
        nonlocal crashes
        if crashes == 0:
            crashes = 1
            desktops[-1].crash()
        return reply(messages)

    log = await evaluate(crash)
    assert log.status == "error" and not log.samples[0].scores
    assert "the environment lost the episode" in log.samples[0].error.message
    crashes = 0
    log = await evaluate(crash, retry_on_error=1)
    assert log.status == "success" and log.results.scores[0].metrics["mean"].value == 1.0


@pytest.fixture
async def inspect_eval(tmp_path):
    """Starts `inspect eval` on a cluster, with an OpenAI server whose replies a function makes; ended at the end."""
    started, model = [], StubModel()
    runner = await model.start()

    async def start(url: str, answer) -> asyncio.subprocess.Process:
        model.answer = answer
        command = ["inspect", "eval", "dart_gym_inspect/desktops", "-T", "tasks=fake/two-steps", "-T", f"url={url}"]
        command += ["--model", "openai-api/stub/tiny", "--model-base-url", model.url, "--log-dir", str(tmp_path)]
        program = Path(sys.executable).with_name(command[0])
        given = {"env": {**os.environ, "STUB_API_KEY": "none"}, "stdout": asyncio.subprocess.DEVNULL, "cwd": tmp_path}
        started.append(await asyncio.create_subprocess_exec(program, *command[1:], "--display", "plain", **given))
        return started[-1]

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await runner.cleanup()


async def test_inspects_own_command_plays_the_task(inspect_eval, tcp_server, tmp_path):
    from inspect_ai.log import list_eval_logs, read_eval_log

    assert await (await inspect_eval(tcp_server.url, reply)).wait() == 0
    (made,) = list_eval_logs(str(tmp_path))
    log = read_eval_log(made)
    assert log.status == "success" and log.results.scores[0].metrics["mean"].value == 1.0


async def test_the_desktop_of_a_killed_evaluation_is_given_back(inspect_eval, start_server, until):
    asked = []

    async def never(messages):
        asked.append(messages)
        await asyncio.Event().wait()

    server = await start_server(listen="ws://127.0.0.1:0", open=True, grace_s=0.1)
    process = await inspect_eval(server.url, never)
    await until(lambda: asked, 120)
    assert server.status()["sessions"] == 1
    process.kill()
    await until(lambda: not server.status()["sessions"])


def test_of_a_suite_only_what_can_run_becomes_a_sample(osworld):
    import dart_gym_inspect

    assert [sample.id for sample in dart_gym_inspect.desktops(tasks="osworld").dataset] == ["osworld/plain#0"]
    with pytest.raises(UnrunnableTaskError, match="absent-program"):
        dart_gym_inspect.desktops(tasks="osworld/absent")


def test_without_inspect_the_import_says_what_to_install(without):
    said = without("inspect_ai", "integrations/inspect", "dart_gym_inspect")
    assert said == "ImportError: Inspect is not installed; next step: pip install 'inspect-ai>=0.3.285'"
