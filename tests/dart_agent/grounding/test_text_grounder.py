"""Several candidates of a model that writes coordinates; the rest of it is tested with its planner and presets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dart_agent.engines.base.engine import Generation
from dart_agent.grounding.candidate import Candidate, Grounding, Query
from dart_agent.grounding.text_grounder import EngineGrounder

SCREEN = np.zeros((112, 112, 3), np.uint8)


class Answers:
    """The greedy answer, and others for seeds."""

    def __init__(self, greedy: str, *sampled: str) -> None:
        self.greedy, self.sampled = greedy, sampled

    async def generate(self, prompt, sampling):
        text = self.greedy if sampling.temperature == 0.0 else self.sampled[sampling.seed - 1]
        return Generation(text, (100, 101), (math.log(0.5), math.log(0.5)), (0, 0), "stop")


async def test_the_greedy_answer_is_first_and_equal_places_are_one(tokens, vision):
    engine = Answers("(10,20)", "(10,20)", "nowhere", "(30,40)")
    grounder = EngineGrounder(engine, tokens=tokens, vision=vision, relative=112)
    places = await grounder.locate("x", SCREEN, k=4)
    assert [(place.x, place.y) for place in places] == [(10, 20), (30, 40)]
    assert all(place.score == pytest.approx(0.25) for place in places)
    assert await grounder.locate_batch([Query("x", SCREEN)]) == [Grounding((Candidate(10, 20, places[0].score),))]


async def test_it_does_not_guess(tokens, vision):
    grounder = EngineGrounder(Answers("I see nothing"), tokens=tokens, vision=vision)
    assert await grounder.locate("x", SCREEN) == []
