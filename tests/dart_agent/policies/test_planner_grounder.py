"""A planner that describes elements and a grounder that finds them, on the drawn desktop."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dart_agent.engines.base.engine import EngineError, Generation
from dart_agent.episodes.play import play
from dart_agent.grounding.candidate import Candidate
from dart_agent.grounding.text_grounder import EngineGrounder, point_of
from dart_agent.models.coordinates import CoordinateSpace
from dart_agent.policies.planner_grounder import PlannedStep, PlannerGrounderPolicy
from dart_agent.policies.policy import Episode
from dart_agent.presets import get_preset
from dart_gym.core.actions import Done, Wait
from dart_gym.core.outcomes import Observation, TerminalState
from dart_gym.sessions.session import Session

COLORS = {"red": (240, 110, 110), "yellow": (240, 220, 90), "blue": (120, 160, 250), "green": (120, 210, 125)}


class Words:
    """A planner with a list of responses; keeps what it was told."""

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = list(texts)
        self.histories: list[list[PlannedStep]] = []

    async def plan(self, instruction, actions, history, screenshot) -> str:
        assert "agent.click" in actions
        self.histories.append(list(history))
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return text


class Instructed:
    """A planner that reads the buttons of the drawn desktop's instruction, one after the other."""

    async def plan(self, instruction, actions, history, screenshot) -> str:
        wanted = re.findall(r"(\w+) button", instruction)
        return f"Next.\n```python\nagent.click('the {wanted[len(history)]} button')\n```"


class Colors:
    """A grounder that finds what has the colour that a description names: the middle of it."""

    async def locate(self, description, screenshot, k=1):
        color = next((value for name, value in COLORS.items() if name in description), None)
        if color is None:
            return []
        near = np.abs(screenshot.astype(int) - color).sum(axis=2) < 40
        ys, xs = np.nonzero(near)
        return [Candidate(int(xs.mean()), int(ys.mean()))] if len(xs) > 50 else []


def click(what: str) -> str:
    return f"I click.\n```python\nagent.click({what!r})\n```"


def observation(error: str = "") -> Observation:
    return Observation(np.zeros((100, 80, 3), np.uint8), "Do it", error)


@pytest.mark.parametrize("seed", range(4))
async def test_a_planner_without_coordinates_solves_a_task(seed):
    async with Session() as session:
        episode = await play(PlannerGrounderPolicy(Instructed(), Colors()), session, "fake/two-steps", seed=seed)
    assert episode.success, episode


async def test_what_is_not_found_is_told_to_the_planner_and_ends_when_it_goes_on():
    planner = Words(click("a unicorn"), "```python\nagent.wait(1)\n```", *[click("a unicorn")] * 3)
    policy = PlannerGrounderPolicy(planner, Colors())
    policy.reset(Episode("t/x", "Do it"))
    decision = await policy.act(observation())
    assert decision.actions == (Wait(0.0),) and "a unicorn" in decision.error and decision.terminal is None
    assert (await policy.act(observation("off the screen"))).actions == (Wait(1.0),)
    assert planner.histories[1] == [PlannedStep(click("a unicorn"), "off the screen")]
    ends = [await policy.act(observation()) for _ in range(3)]
    assert [one.terminal for one in ends] == [None, None, TerminalState.PARSE_ERROR]
    policy.reset(Episode("t/x", "Do it"))
    planner.texts = ["```python\nagent.done()\n```"]
    assert (await policy.act(observation())).actions == (Done(),) and planner.histories[-1] == []


async def test_a_second_call_is_told_to_the_planner_and_nothing_of_both_is_done():
    two = "```python\nagent.wait(1)\nagent.done()\n```"
    planner = Words(two, "```python\nagent.wait(1)\n```", *[two] * 3)
    policy = PlannerGrounderPolicy(planner, Colors(), action_format=get_preset("agent-s3").format)
    policy.reset(Episode("t/x", "Do it"))
    decision = await policy.act(observation())
    assert (decision.actions, decision.terminal) == ((Wait(0.0),), None)
    assert (await policy.act(observation())).actions == (Wait(1.0),)
    assert planner.histories[1] == [PlannedStep(two, "one call is allowed in a response, there are 2")]
    ends = [await policy.act(observation()) for _ in range(3)]
    assert [one.terminal for one in ends] == [None, None, TerminalState.PARSE_ERROR]


async def test_what_cannot_be_read_or_answered():
    policy = PlannerGrounderPolicy(Words("no code", EngineError("gone")), Colors())
    policy.reset(Episode("t/x", "Do it"))
    assert (await policy.act(observation())).terminal is TerminalState.PARSE_ERROR
    decision = await policy.act(observation())
    assert (decision.terminal, decision.error) == (TerminalState.MODEL_ERROR, "gone")


def test_points_of_answers():
    screen = CoordinateSpace((200, 100), (200, 100))
    assert point_of("(12, 34)", screen) == (12, 34)
    assert point_of("<point>12.4 34.6</point> or 9", screen) == (12, 35)
    assert point_of("[500, 500]", CoordinateSpace.relative((200, 100), 1000)) == (100, 50)
    for answer in ("", "nowhere", "12", "(900, 3)", "(-5, 3)", "9" * 5000, "__import__('os')"):
        assert point_of(answer, screen) is None


async def test_a_model_as_grounder(tokens, vision):
    class Answers:
        async def generate(self, prompt, sampling):
            self.prompt, self.sampling = prompt, sampling
            ids = tuple(tokens.encode("(42,56)"))
            return Generation("(42,56)", ids, (0.0,) * len(ids), (1, 1), "stop")

    engine = Answers()
    grounder = EngineGrounder(engine, tokens=tokens, vision=vision)
    place = (await grounder.locate("the OK button", observation().screenshot))[0]
    assert place == Candidate(40, 50, score=1.0), "the middle of the 84x112 that the model saw, on a screen of 80x100"
    assert "the OK button" in tokens.decode(engine.prompt.token_ids) and len(engine.prompt.images) == 1
    assert engine.sampling.temperature == 0.0 and engine.sampling.stop_ids == tokens.stop_ids
    relative = EngineGrounder(engine, tokens=tokens, vision=vision, relative=100)
    assert [(place.x, place.y) for place in await relative.locate("x", observation().screenshot)] == [(34, 56)]
