"""The policy planner+grounder by name: whose choices are recorded, what is asked for wrongly, best of k."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dart_agent.engines.base.engine import Sampling
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.episodes.play import play
from dart_agent.grounding.candidate import Candidate
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.pointer_prompt import PointerPrompt
from dart_agent.grounding.verifier import RADIUS, VerifiedGrounder, Verifier, marked
from dart_agent.policies.planned_policies import planned_policies
from dart_agent.policies.planner_grounder import InstructionPlanner, PlannedStep
from dart_agent.policies.policy_factory import PolicyOptions, open_policies
from dart_gym.core.errors import ConfigurationError
from dart_gym.sessions.session import Session

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def pointer_dir(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return PointerModel(tiny_dir, begin="", dtype="float32").save(tmp_path_factory.mktemp("pointer") / "model")


async def test_the_head_plays_and_its_choice_is_recorded(pointer_dir: Path):
    asked = PointerPrompt.load(pointer_dir)
    chosen = []
    async with (
        open_policies(PolicyOptions(policy="planner+grounder", model=str(pointer_dir))) as make,
        Session() as own,
    ):
        policy = make(own)
        for seed in (0, 0, 1):
            episode = await play(policy, own, "fake/click-button", seed=seed)
            assert not episode.lost_by and episode.num_actions == 1
            (step,) = episode.steps
            assert step.prompt_ids[-1] == asked.tokens.actor_id and step.pixels is not None
            (patch,), (logprob,) = step.response_ids, step.logprobs
            assert -20 < logprob < 0 and step.entropy > 0
            screen = step.pixels.screen
            assert (step.actions[0]["x"], step.actions[0]["y"]) == asked.place(patch, screen)
            assert step.prompt_ids == asked.question(episode.instruction, screen)
            chosen.append((patch, logprob))
    assert chosen[0] == chosen[1]  # the same seed draws the same


async def test_a_model_without_a_head_writes_coordinates(tiny_dir: Path):
    engine = TransformersEngine(tiny_dir, threads=1)
    try:
        make = planned_policies(tiny_dir, Sampling(max_tokens=6, training=True), InstructionPlanner())
        async with Session() as session:
            episode = await play(make(engine), session, "fake/click-button")
        (step,) = episode.steps
        assert len(step.response_ids) == len(step.logprobs) > 1 and episode.terminal == "parse_error"
    finally:
        await engine.close()


async def test_an_instruction_is_said_as_it_is():
    said = await InstructionPlanner().plan('Say "it\'s" ```', "", [PlannedStep("x")], np.zeros((2, 2, 3), np.uint8))
    assert said.count("agent.click(") == 1


@pytest.mark.parametrize(
    ("fields", "match"),
    [({}, "needs --model DIR"), ({"model": "x", "planner": "nobody"}, "nobody"), ({"model": "/no/such"}, "/no/such")],
)
async def test_what_is_missing_is_named(fields: dict[str, str], match: str):
    with pytest.raises((ConfigurationError, OSError), match=match):
        async with open_policies(PolicyOptions(policy="planner+grounder", **fields)):
            pass


class Places:
    """A grounder with a list of places."""

    def __init__(self, *points: tuple[int, int]) -> None:
        self.points = points

    async def locate(self, description, screenshot, k=1):
        return [Candidate(x, y, 0.5) for x, y in self.points[:k]]


async def test_the_verifier_says_true_or_false_with_a_probability(tiny_dir: Path):
    engine = TransformersEngine(tiny_dir, threads=1)
    try:
        verifier = Verifier.from_dir(engine, tiny_dir)
        screen = np.full((112, 168, 3), 255, np.uint8)
        likely = await verifier.probability("the OK button", screen, 30, 40)
        assert 0 < likely < 1
        logits = engine.runner.model  # noqa: SLF001  # the same two numbers by a plain forward pass
        prompt = verifier.prompt("the OK button", screen, 30, 40)
        ids = torch.tensor([prompt.token_ids])
        with torch.no_grad():
            found = logits(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=torch.from_numpy(verifier.tokens.mm_token_type_ids(ids.numpy())),
                pixel_values=torch.from_numpy(verifier.vision.patchify(prompt.images[0])),
                image_grid_thw=torch.tensor([verifier.vision.grid(prompt.images[0])]),
            ).logits[0, -1]
        pair = found[[verifier.answer(True), verifier.answer(False)]].softmax(-1)
        assert likely == pytest.approx(float(pair[0]), abs=1e-4)
    finally:
        await engine.close()


class Judge:
    """A verifier that says a number for each place."""

    def __init__(self, said: dict[tuple[int, int], float]) -> None:
        self.said, self.asked = said, []

    async def probability(self, description, screenshot, x, y):
        self.asked.append((x, y))
        return self.said[x, y]


@pytest.mark.parametrize(
    ("said", "chosen", "asked"),
    [((0.2, 0.96, 0.99), 1, 2), ((0.2, 0.9, 0.4), 1, 3), ((0.95, 0.1, 0.1), 0, 1)],
    ids=["the first that is accepted", "none: the likeliest", "at once"],
)
async def test_candidates_are_judged_until_one_is_accepted(said, chosen, asked):
    points = ((10, 10), (20, 20), (30, 30))
    judge = Judge(dict(zip(points, said, strict=True)))
    grounder = VerifiedGrounder(Places(*points), judge, candidates=3)
    (best,) = await grounder.locate("x", np.zeros((40, 40, 3), np.uint8))
    assert (best.x, best.y) == points[chosen] and best.score == said[chosen]
    assert len(judge.asked) == asked
    assert await VerifiedGrounder(Places(), judge).locate("x", np.zeros((40, 40, 3), np.uint8)) == []


def test_the_circle_is_around_the_place_and_what_is_far_is_cut_off():
    screen = np.full((900, 1600, 3), 255, np.uint8)
    shown = marked(screen, 700, 20)
    assert shown.shape == (520, 1000, 3) and screen.min() == 255
    rows, columns = (shown != 255).any(-1).nonzero()
    assert (columns.min(), columns.max()) == (500 - RADIUS, 500 + RADIUS)
    assert (rows.min(), rows.max()) == (20 - RADIUS, 20 + RADIUS)
    assert (shown[20, 500] == 255).all()
    assert marked(screen, 700, 300, margin=28).shape == (56, 56, 3)
