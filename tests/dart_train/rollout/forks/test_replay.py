from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from forked_play import OK_CLICK, Says

from dart_agent.episodes.screen_difference import difference
from dart_agent.episodes.trajectory_format import pack_trajectory, unpack_trajectory
from dart_agent.formats import get_format
from dart_agent.policies.vlm_policy import VLMPolicy
from dart_agent.prompting.conversation import ConversationConfig
from dart_agent.viewer.recorded_episodes import episode_row
from dart_gym.core.actions import Click
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import TerminalState
from dart_gym.sessions.session import Session
from dart_gym.tasks.catalog.registry import task_from_dict
from dart_lab.agent.replay_bench import measure
from dart_train.rollout.forks.fork import Fork, can_fork, fork_at
from dart_train.rollout.play.rollouts import Rollout
from dart_train.rollout.schedule.scheduler import Assignment

SEED = 10_007
HISTORY = ConversationConfig(style="short", screenshots=2, texts=3, patience=1)


def policy_of(engine, tokens, vision) -> VLMPolicy:
    return VLMPolicy(engine, tokens=tokens, vision=vision, action_format=get_format("ui_tars"), conversation=HISTORY)


def assignment(task: str, fork: Fork | None = None, n: int = 0) -> Assignment:
    key = f"{task}@{SEED}#0.0" + ("+0" if fork else "")
    return Assignment(task, SEED, key, n, 0, 99 + n, 6, 2, fork)


async def clicks(task: str, count: int) -> list[str]:
    """Return what a model says to click on the buttons that are asked for, in their order."""
    said = []
    async with Session() as session:
        await session.reset(task, seed=SEED)
        for _ in range(count):
            action = await session.oracle()
            assert isinstance(action, Click)
            said.append(f"Action: click(start_box='({action.x},{action.y})')")
            await session.step(action)
    return said


async def played(engine: Says, tokens, vision, one: Assignment):
    async with Session() as session:
        return await Rollout(one).play(session, policy_of(engine, tokens, vision))


async def test_a_continuation_is_asked_what_the_whole_episode_would_have_been(tokens, vision):
    """Same prompts, images, version of the history, and screens behind the fork, although two steps are replayed."""
    task = "forked_play:Forked/long"
    texts = await clicks(task, 3)
    texts = [texts[0], "I am not sure.", texts[1], texts[2]]  # the second cannot be read: the next prompt says so
    whole = Says(texts)
    parent = await played(whole, tokens, vision, assignment(task))
    assert parent.terminal is TerminalState.DONE and parent.score == 1.0 and len(parent.steps) == 4
    fork = fork_at(parent, 2, None, 0.0)
    asked = Says(texts[2:], first=2)
    child = await played(asked, tokens, vision, assignment(task, fork, 1))
    assert (child.source, child.forked_from, child.fork_step) == ("fork", parent.trajectory_id, 2)
    assert child.terminal is TerminalState.DONE and child.score == 1.0
    assert [p.token_ids for p in asked.prompts] == [p.token_ids for p in whole.prompts[2:]]
    for one, other in zip(asked.prompts, whole.prompts[2:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one.images, other.images, strict=True))
    assert [step.prompt_ids for step in child.steps] == [step.prompt_ids for step in parent.steps[2:]]
    assert child.num_actions == parent.num_actions == 4 and child.timings["reset"] > 0
    assert len({*asked.seeds, *whole.seeds}) == 6  # continuations are sampled with seeds of their own
    deeper = fork_at(child, 1, fork, 0.0)
    assert deeper.step == 3 and deeper.depth == 2 and deeper.parent == child.trajectory_id
    last = await played(Says(texts[3:]), tokens, vision, assignment(task, deeper, 1))
    assert last.score == 1.0 and last.fork_step == 3 and len(last.steps) == 1 and last.num_actions == 4


async def test_a_fork_is_given_up_where_the_screen_is_another_one(tokens, vision):
    task = "forked_play:Forked/changing"
    parent = await played(Says([OK_CLICK.replace("42,56", "1,1")] * 6), tokens, vision, assignment(task))
    engine = Says([OK_CLICK] * 6)
    child = await played(engine, tokens, vision, assignment(task, fork_at(parent, 2, None, 0.001)))
    assert child.terminal is TerminalState.INTERRUPTED and child.lost_by == "fork" and child.score is None
    assert "the screen at step 2 differs in" in child.detail and "allowed are 0.100%" in child.detail
    assert child.steps == () and child.num_actions == 2 and child.timings["step"] > 0 and not child.trainable
    tolerant = await played(Says([OK_CLICK] * 6), tokens, vision, assignment(task, fork_at(parent, 2, None, 1.0)))
    assert tolerant.lost_by == "" and len(tolerant.steps) >= 1


async def test_a_fork_is_given_up_where_the_words_differ_or_the_episode_ends_before_it(tokens, vision):
    task = "forked_play:Forked/long"
    texts = await clicks(task, 3)
    parent = await played(Says(texts), tokens, vision, assignment(task))
    fork = fork_at(parent, 2, None, 1.0)
    words = replace(fork, recorded=replace(fork.recorded, prompt_ids=fork.recorded.prompt_ids[:-1]))
    child = await played(Says([OK_CLICK] * 6), tokens, vision, assignment(task, words))
    assert child.lost_by == "fork" and "other words or sizes" in child.detail
    ends = replace(fork, prefix=(parent.steps[2], *fork.prefix))  # a wrong click ends this task
    child = await played(Says([OK_CLICK] * 6), tokens, vision, assignment(task, ends))
    assert child.lost_by == "fork" and child.detail == "it ended as done while step 1 was replayed"
    assert child.score is None, "it was evaluated, and counts for nothing"
    assert child.num_actions == 1
    foreign = replace(fork, prefix=(replace(fork.prefix[0], response_ids=(tokens.image_pad_id,)), fork.prefix[1]))
    child = await played(Says([OK_CLICK] * 6), tokens, vision, assignment(task, foreign))
    assert child.lost_by == "fork" and "step 0 cannot be replayed" in child.detail


async def test_a_task_that_declares_that_it_does_not_repeat_is_not_forked(tokens, vision):
    texts = await clicks("forked_play:Forked/declared", 3)
    parent = await played(Says(texts), tokens, vision, assignment("forked_play:Forked/declared"))
    assert parent.score == 1.0 and not parent.deterministic and not can_fork(parent, 1)
    other = await played(
        Says(await clicks("forked_play:Forked/long", 3)), tokens, vision, assignment("forked_play:Forked/long")
    )
    assert [can_fork(other, step) for step in range(4)] == [False, True, True, False]
    with pytest.raises(TaskError, match=r"dart\.deterministic must be true or false, got 'no'"):
        task_from_dict({"id": "a", "instruction": "", "dart": {"deterministic": "no"}}, "suite")


async def test_a_record_says_where_it_was_forked_and_others_are_the_bytes_that_they_were(tokens, vision):
    texts = await clicks("forked_play:Forked/long", 3)
    parent = await played(Says(texts), tokens, vision, assignment("forked_play:Forked/long"))
    plain = replace(parent, steps=())
    assert b"fork" not in pack_trajectory(plain).replace(b"forked_play", b"")
    forked = replace(plain, forked_from="a.s1.0.abc", fork_step=3, deterministic=False)
    assert episode_row(forked)["kind"] == "rollout"  # on the page of recorded episodes
    assert unpack_trajectory(pack_trajectory(forked)) == forked and unpack_trajectory(pack_trajectory(plain)) == plain


async def test_replay_fidelity_is_measured_on_tasks_that_repeat_and_on_those_that_do_not():
    said: list[str] = []
    report = await measure(["fake", "forked_play:Forked"], 1000, 4, said.append)
    keys = report.keys
    assert keys["fake.match_0"] == 1.0 and keys["fake.places"] >= 2
    assert 0.0 < keys["forked_play:Forked.match_0.002"] < 1.0 == len(report.notes)
    assert report.notes[0].startswith("forked_play:Forked/changing: ") and len(said) == 5
    assert keys["all.places"] == keys["fake.places"] + keys["forked_play:Forked.places"]


def test_screens_differ_by_the_share_of_their_pixels_beside_the_pointer():
    one = np.zeros((100, 200, 3), np.uint8)
    other = one.copy()
    other[10:20, 10:30, 1] = 1
    assert difference(one, one, (200, 100), None) == 0.0
    assert difference(one, other, (200, 100), None) == pytest.approx(200 / 20_000)
    assert difference(one, other, (400, 200), (40, 30)) == 0.0  # in pixels of a screen twice as large
    assert difference(one, one[:50], (200, 100), None) == 1.0
