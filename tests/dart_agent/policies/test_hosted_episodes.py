"""Hosted policies through whole tasks on real desktops: faults in between change neither what is done nor the score.

The model behind the API is the task's oracle, whose actions the policy's own format writes. Before each answer comes a
fault, of all kinds in turn.
"""

import itertools
import json
from typing import Any

import pytest
from dart_gym_hosted_models.hosted_calls import HostedCalls
from dart_gym_hosted_models.hosted_models import connect, fit_image
from dart_gym_hosted_models.hosted_policies import HOSTED

from dart_agent.episodes.play import play
from dart_gym.core.actions import Done
from dart_gym.core.outcomes import StepResult
from dart_gym.sessions.session import Session
from tests.helpers.hosted_api import KEY, Cut, Reply, Status, candidate, hosted_api, message, response

pytestmark = pytest.mark.desktop
TASKS = ("dialogs/new-contact", "dialogs/shopping-list", "dialogs/pick-date")
AGAIN = {"retry-after": "0.05"}


class Watched:
    """A session that remembers what it showed and was told."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.seen: Any = None
        self.actions: list[Any] = []

    async def reset(self, *arguments: Any, **options: Any) -> StepResult:
        self.seen = await self._session.reset(*arguments, **options)
        return self.seen

    async def step(self, action: Any) -> StepResult:
        self.actions.append(action)
        self.seen = await self._session.step(action)
        return self.seen

    async def finish(self, terminal: Any) -> StepResult:
        return await self._session.finish(terminal)

    async def oracle(self) -> Any:
        return await self._session.oracle()


class OracleModel:
    """Answers as the provider's model would, had it the oracle's eyes; with faults before.

    Attributes:
        planned: actions that it asked for, each once.
    """

    def __init__(self, spec: str, session: Watched, action_format: Any) -> None:
        self.spec, self._session, self._format = spec, session, action_format
        self.planned: list[Any] = []
        self._numbers = itertools.count()
        self._faults = itertools.cycle(range(6))
        self._fault_is_next = True

    async def __call__(self, number: int) -> Reply:
        fault, self._fault_is_next = self._fault_is_next, not self._fault_is_next
        if fault:
            return await self._fault(next(self._faults))
        action = await self._session.oracle()
        self.planned.append(action)
        return await self._written(action)

    async def _fault(self, kind: int) -> Reply:
        if kind == 0:
            return Status(429, {"error": {"message": "slow down", "code": 429}}, AGAIN)
        if kind == 1:
            return Status(500, "broken")
        if kind in (2, 3):  # a whole answer but for its end: what is in it must not be done
            return Cut(await self._written(await self._session.oracle()), clean=kind == 3)
        if kind == 4:
            return self._refusal()
        return Status(503, {"error": {"message": "overloaded", "code": 503}}, AGAIN)

    def _refusal(self) -> Reply:
        said = "I had rather not."
        if self.spec == "anthropic":
            return message({"type": "text", "text": said}, stop="refusal")
        if self.spec == "openai":
            parts = [{"type": "refusal", "refusal": said}]
            item = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": parts}
            return response(next(self._numbers), item)
        return candidate(finish="SAFETY")

    async def _written(self, action: Any) -> dict[str, Any]:
        space = fit_image(self._session.seen.observation.screenshot).space
        given, number = json.loads(self._format.format(action, space)), next(self._numbers)
        if self.spec == "anthropic":
            for block in given["content"]:
                if block["type"] == "tool_use":
                    block["id"] = f"toolu_{number}"
            return message(
                *given["content"], stop=given["stop_reason"], input_tokens=10, output_tokens=5,
                cache_read_input_tokens=100, cache_creation_input_tokens=20,
            )  # fmt: skip
        if self.spec == "openai":
            for item in given["output"]:
                item |= {"id": f"item_{number}", "status": "completed"}
                if item["type"] == "computer_call":
                    item |= {"call_id": f"call_{number}", "pending_safety_checks": []}
                elif item["type"] == "message":
                    item["role"] = "assistant"
                    item["content"] = [{**part, "annotations": []} for part in item["content"]]
            return response(number, *given["output"], input=130, cached=100, output=5)
        return candidate(*given["candidates"][0]["content"]["parts"], input=130, cached=100, output=3, thoughts=2)


def answered(spec: str, body: dict[str, Any]) -> None:
    """Every call of the model has one result, whatever failed on the way."""
    if spec == "anthropic":
        blocks = [block for item in body["messages"] for block in item["content"]]
        uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert uses == [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sum("cache_control" in block for block in blocks) == min(
            2, sum(x["role"] == "user" for x in body["messages"])
        )
    elif spec == "gemini":
        parts = [part for item in body["contents"] for part in item["parts"]]
        calls = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
        assert calls == [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]


@pytest.mark.parametrize("spec", HOSTED)
@pytest.mark.parametrize("task", TASKS)
async def test_a_task_is_done_in_spite_of_faults(spec, task, monkeypatch):
    provider, policy_class, _ = HOSTED[spec]
    monkeypatch.setenv(provider.key_variable, KEY)
    monkeypatch.setattr("dart_gym_hosted_models.hosted_calls.LONGEST_PAUSE_S", 0.05)
    async with hosted_api() as api, connect(provider, api.url) as client, Session() as session:
        watched = Watched(session)
        prices = {"input": 1.0, "output": 10.0, "cached": 0.1, "written": 2.0}
        calls = HostedCalls(provider, prices=prices, budget_usd=1.0)
        policy = policy_class("m", client=client, calls=calls)
        api.model = model = OracleModel(spec, watched, policy._format)
        episode = await play(policy, watched, task, seed=3)
    assert (episode.score, episode.lost_by, str(episode.terminal)) == (1.0, "", "done"), episode
    assert len(model.planned) >= 3 and len(api.requests) == 2 * len(model.planned)
    # Each planned action was carried out once, in order, and nothing else was.
    assert [type(action) for action in watched.actions] == [type(action) for action in model.planned]
    assert isinstance(model.planned[-1], Done)
    for body in api.requests:
        answered(spec, body)
    assert KEY not in json.dumps(api.requests)
    assert episode.usage == {**calls.spent} and episode.usage["output"] >= 5 * len(model.planned)
    assert episode.usage["cached"] >= 100 * len(model.planned)
    spent = sum(episode.usage.get(name, 0) * price for name, price in prices.items()) / 1e6
    assert episode.usage["usd"] == pytest.approx(spent)
