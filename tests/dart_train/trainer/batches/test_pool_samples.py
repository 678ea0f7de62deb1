"""Successes of the experience pool on their way through the trainer: plain prompts, importance weight 1."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.prompting.conversation import Conversation
from dart_gym.core.outcomes import TerminalState
from dart_train.data import Group, image_hash
from dart_train.data.maintenance.pool_import import strip_hint
from dart_train.trainer import losses
from dart_train.trainer.batches.members import BatchSettings
from dart_train.trainer.batches.optimizer_batch import build_batch

pytestmark = pytest.mark.train
PLAIN = "Click on the tab Red"
HINT = "\n\nHere is an instruction to help you complete the task: click at the left."


def play(instruction: str, tokens, vision, screens) -> Trajectory:
    """An episode of two steps whose prompts the real conversation makes."""
    conversation, steps = Conversation(tokens, vision), []
    conversation.begin(instruction)
    response = tuple(tokens.response("Action: wait()"))
    for screen in list(screens.values())[:2]:
        conversation.observe(screen)
        prompt = conversation.prompt()
        hashes = tuple(image_hash(image) for image in prompt.images)
        steps.append(Step(prompt.token_ids, hashes, response, (-1.0,) * len(response), text="Action: wait()"))
        conversation.respond(response)
    ended = {"terminal": TerminalState.DONE, "score": 1.0, "steps": tuple(steps)}
    return Trajectory("t", 0, instruction, "0", "h", "run", "g", "hinted", **ended)


def test_stripping_a_hint_gives_the_prompts_of_a_policy_that_had_none(tokens, vision, screens):
    stripped = strip_hint(play(PLAIN + HINT, tokens, vision, screens), tokens.encode, "Here is an instruction")
    plain = play(PLAIN, tokens, vision, screens)
    assert stripped.instruction == PLAIN
    assert [step.prompt_ids for step in stripped.steps] == [step.prompt_ids for step in plain.steps]
    assert [step.image_hashes for step in stripped.steps] == [step.image_hashes for step in plain.steps]


def test_an_injected_success_has_weight_one_and_the_advantage_of_its_reward(collator, make_prompt, tokens, screens):
    image = next(iter(screens))
    response = tuple(tokens.response("Action: wait()"))
    step = Step(make_prompt("Click", image), (image,), response, (-9.0,) * len(response))
    failed = Trajectory("t", 0, "Click", "0", "f", "run", "g", terminal=TerminalState.DONE, score=0.0, steps=(step,))
    shown = replace(failed, trajectory_id="s", score=1.0, source="human", steps=(replace(step, logprobs=()),))
    group = Group("g", "t", (failed, failed, failed, shown), frozenset({"s"}))
    batch = build_batch([group], collator, BatchSettings(), version=5, rng=random.Random(0), max_tokens=4096)
    weights, advantages = torch.empty(4, len(response)), torch.empty(4)
    for micro in batch.micro_batches:
        current = torch.full_like(micro.behaviour_logprobs, -10.0)  # off by exp(-1) from what was recorded
        weights[micro.sample_index] = losses.correction_weight(current, micro.behaviour_logprobs, micro.behaviour_known)
        advantages[micro.sample_index] = micro.advantages
    assert weights[3].tolist() == [1.0] * len(response)
    assert weights[:3].flatten().tolist() == pytest.approx([0.367879] * 3 * len(response), abs=1e-5)
    assert advantages.tolist() == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-3)
    assert batch.metrics["staleness/max"] == 5.0  # of the rollouts: the pool's has no version


@pytest.mark.parametrize(("weights", "known"), [("recorded", 4), ("one", 3)])
def test_a_success_of_the_runs_own_from_the_pool(collator, make_prompt, tokens, screens, weights, known):
    """It is as old as it likes, and its weight is by what was recorded, or 1 as that of an oracle."""
    image = next(iter(screens))
    response = tuple(tokens.response("Action: wait()"))
    step = Step(make_prompt("Click", image), (image,), response, (-9.0,) * len(response), version=(9, 9))
    fresh = Trajectory("t", 0, "Click", "0", "f", "run", "g", terminal=TerminalState.DONE, score=0.0, steps=(step,))
    own = replace(fresh, trajectory_id="s", score=1.0, steps=(replace(step, version=(2, 2)),))
    group = Group("g", "t", (fresh, fresh, fresh, own), frozenset({"s"}))
    settings = BatchSettings(pool_weights=weights)
    batch = build_batch([group], collator, settings, version=10, rng=random.Random(0), max_tokens=4096)
    assert batch.metrics["staleness/max"] == 1.0  # not 8: the window is not for the pool
    assert sum(int(micro.behaviour_known.any(-1).sum()) for micro in batch.micro_batches) == known
    now = build_batch([group], collator, settings, version=9, rng=random.Random(0), max_tokens=4096)
    assert sum(int(micro.stale.sum()) for micro in now.micro_batches) == 1  # what an old version sampled: gap/behind
