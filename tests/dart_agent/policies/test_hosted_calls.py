"""Patience, rate limits, budgets and prices of hosted models, without a model."""

import asyncio
import threading
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from dart_gym_hosted_models import hosted_calls
from dart_gym_hosted_models.hosted_calls import BudgetSpentError, HostedCalls, read_prices
from dart_gym_hosted_models.hosted_models import ANTHROPIC, OPENAI, connect
from dart_gym_hosted_models.hosted_policies import HOSTED
from rich.console import Console
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.episodes.trajectory_format import pack_trajectory, unpack_trajectory
from dart_agent.evaluation.score_tables import score_row, score_table
from dart_agent.evaluation.scores import score_task, total_score
from dart_agent.policies.policy import Decision, Episode
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.outcomes import Observation, TerminalState
from tests.helpers.hosted_api import KEY, Status, hosted_api, message

PRICES = {"input": 2.0, "output": 10.0}


def usage(answer: dict[str, Any]) -> Counter[str]:
    return Counter(answer["usage"])


async def answer() -> dict[str, Any]:
    return {"usage": {"input": 900, "output": 100}}


def status_error(status: int, headers: dict[str, str] | None = None, **body: Any) -> Any:
    error: Any = openai.APIError("said", request=None, body=body)  # type: ignore[arg-type]
    error.status_code, error.response = status, SimpleNamespace(headers=headers or {})
    return error


def failing(*errors: Exception) -> Any:
    """Sends that fail in turn, and then do not; with the times at which they were sent."""
    left, sent = list(errors), []

    async def send() -> dict[str, Any]:
        sent.append(time.monotonic())
        if left:
            raise left.pop(0)
        return await answer()

    send.sent = sent  # type: ignore[attr-defined]
    return send


async def test_a_budget_of_tokens_stops_before_the_request_that_could_exceed_it():
    calls = HostedCalls(OPENAI, budget_tokens=3500)
    for _ in range(3):
        await calls.ask(answer, usage, "m")
    with pytest.raises(BudgetSpentError, match=r"budget of 3500 tokens .* 3000 are spent by 3 of up to 1000 each"):
        await calls.ask(answer, usage, "m")
    assert calls.spent["requests"] == 3


async def test_a_budget_of_money_counts_what_is_under_way():
    """Ten at once with money for four: four are sent, whatever the order."""
    calls = HostedCalls(OPENAI, budget_usd=0.0125, prices=PRICES)  # a request is 0.0028
    await calls.ask(answer, usage, "m")
    open_ = asyncio.Event()

    async def slow() -> dict[str, Any]:
        await open_.wait()
        return await answer()

    tasks = [asyncio.create_task(calls.ask(slow, usage, "m")) for _ in range(9)]
    await asyncio.sleep(0)
    open_.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, BudgetSpentError) for one in done) == 6
    assert calls.spent["requests"] == 4 and calls.spent["usd"] == pytest.approx(0.0112)


async def test_after_a_429_nobody_sends_before_its_time():
    calls = HostedCalls(OPENAI)
    limited = failing(status_error(429, {"retry-after": "0.4"}))
    others = failing()
    first = asyncio.create_task(calls.ask(limited, usage, "m"))
    while not limited.sent:
        await asyncio.sleep(0)
    await asyncio.gather(first, *[calls.ask(others, usage, "m") for _ in range(3)])
    assert len(limited.sent) == 2 and min(*others.sent, limited.sent[1]) - limited.sent[0] >= 0.39
    assert calls.spent["requests"] == 4


async def test_patience_has_an_end_and_says_how_often_it_tried(monkeypatch):
    monkeypatch.setattr(hosted_calls, "LONGEST_PAUSE_S", 0.01)
    calls = HostedCalls(OPENAI, patience_s=0.1)
    found = await calls.ask(failing(*[status_error(503)] * 1000), usage, "m")
    assert isinstance(found, Decision) and found.terminal is TerminalState.MODEL_ERROR
    assert "attempts" in found.error and "HTTP status 503" in found.error
    assert hosted_calls.HostedCalls(OPENAI).pause_after(status_error(503), 5000, "m") <= 60 * 1.25
    # A pause longer than the patience is not even begun.
    begun = time.monotonic()
    found = await calls.ask(failing(status_error(429, {"retry-after": "3600"})), usage, "m")
    assert isinstance(found, Decision) and time.monotonic() - begun < 5


async def test_pauses_are_those_that_the_api_names():
    google = type("APIError", (Exception,), {"code": 429, "details": {"x": [{"retryDelay": "7s"}]}})("slow down")
    assert hosted_calls.asked_pause(google) == 7.0 and hosted_calls.http_status(google) == 429
    assert hosted_calls.asked_pause(status_error(429, {"retry-after": "12"})) == 12.0
    date = "Wed, 01 Jan 2020 00:00:00 GMT"
    assert hosted_calls.asked_pause(status_error(429, {"retry-after": date})) == 0.0
    assert hosted_calls.asked_pause(status_error(429, {"retry-after": "soon"})) is None


@pytest.mark.parametrize("error", [400, 413, 422])
async def test_a_request_that_is_wrong_is_not_sent_again(error):
    send = failing(*[status_error(error)] * 2)
    found = await HostedCalls(OPENAI).ask(send, usage, "m")
    assert isinstance(found, Decision) and len(send.sent) == 1


async def test_a_quota_that_is_used_up_wants_a_person():
    spent = status_error(429, code="insufficient_quota")
    with pytest.raises(ConfigurationError, match="quota is used up"):
        await HostedCalls(OPENAI).ask(failing(spent), usage, "m")


def test_prices_and_budgets_are_read_or_refused():
    assert read_prices("") == {} and read_prices("input=3, output=15,cached=0.3") == {
        "input": 3.0, "output": 15.0, "cached": 0.3,
    }  # fmt: skip
    for wrong in ("input=3", "input=3,output=-1", "input=3,output=x", "gold=3,input=1,output=1", "input"):
        with pytest.raises(ConfigurationError, match="--prices"):
            read_prices(wrong)
    with pytest.raises(ConfigurationError, match="--budget-usd needs --prices"):
        HostedCalls(ANTHROPIC, budget_usd=3.0)


def test_what_was_spent_is_in_the_report_and_the_record():
    def episode(task: str, usd: float, lost_by: str = "") -> Trajectory:
        used = {"input": 10.0, "output": 5, "requests": 2, "usd": usd}
        score = None if lost_by else 1.0
        return Trajectory(task, 0, terminal=TerminalState.DONE, score=score, lost_by=lost_by, usage=used, ended_at=1.0)

    scores = [score_task(f"t/{name}", [episode(name, 0.25), episode(name, 0.5, "engine")]) for name in "ab"]
    assert score_row(scores[0])["usage"] == {"input": 20.0, "output": 10, "requests": 4, "usd": 0.75}
    assert total_score(scores).usage["usd"] == 1.5
    table = score_table(scores)
    assert table.columns[-1].header == "usd, all\nepisodes"
    assert list(table.columns[-1].cells) == ["0.75", "0.75", "1.5"]
    assert len(score_table([score_task("t/a", [])]).columns) == len(table.columns) - 1
    assert unpack_trajectory(pack_trajectory(episode("a", 0.25))).usage["usd"] == 0.25


@pytest.mark.parametrize("spec", HOSTED)
async def test_the_sdks_do_not_try_again_by_themselves(spec, monkeypatch):
    provider, policy_class, _ = HOSTED[spec]
    monkeypatch.setenv(provider.key_variable, KEY)
    async with hosted_api() as api, connect(provider, api.url) as client:
        api.replies = [Status(500, "broken")]
        policy = policy_class("m", client=client, calls=HostedCalls(provider, patience_s=0))
        policy.reset(Episode("t/x", "Save"))
        decision = await policy.act(Observation(np.zeros((40, 64, 3), np.uint8), "Save"))
    assert decision.terminal is TerminalState.MODEL_ERROR and len(api.requests) == 1


@pytest.mark.thorough
def test_an_evaluation_stops_at_its_budget_and_goes_on_with_a_larger_one(tmp_path, monkeypatch):
    """The command: a few episodes, one line that says why it stopped, and the rest by the same command."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setattr(agent_cli, "console", Console(width=160))  # the command's is as wide as whatever made it first
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = hosted_api()
    api = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)

    async def model(number: int) -> dict[str, Any]:
        return message({"type": "text", "text": "done"}, stop="end_turn", input_tokens=100, output_tokens=10)

    api.model = model
    command = [
        "eval", "fake/click-button", "--policy", "anthropic", "--model", "m", "--engine-url", api.url, "--n", "4",
        "--parallel", "1", "--out", str(tmp_path / "out"), "--prices", "input=10,output=100", "--budget-usd",
    ]  # fmt: skip
    try:
        stopped = CliRunner().invoke(agent_cli.app, [*command, "0.0045"])
        assert isinstance(stopped.exception, BudgetSpentError) and "larger budget goes on" in str(stopped.exception)
        assert len(api.requests) == 2
        done = CliRunner().invoke(agent_cli.app, [*command, "1"])
        assert done.exit_code == 0, done.output
        assert len(api.requests) == 4 and "usd, all" in done.output and "0.008" in done.output
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
