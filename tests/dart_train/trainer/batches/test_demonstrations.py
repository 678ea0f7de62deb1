"""Demonstrations: encoded as a rollout would have been."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.outcomes import TerminalState
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.batches.demonstrations import Demonstration, encode, recorded


@pytest.mark.train
def test_encoded_as_a_rollout_would_have_been(tokens, vision, screens):
    first, second, third, _ = screens
    conversation = Conversation(tokens, vision, ConversationConfig(style="short", screenshots=2, texts=1))
    answers = ("Action: wait()", "Action: click(start_box='(1,2)')", "Action: finished()")
    demonstration = Demonstration("t", "Close the dialog", (first, second, third), answers, ("", "off the screen", ""))
    samples = encode([demonstration], conversation, tokens, screens.__getitem__)
    assert [sample.image_hashes for sample in samples] == [(first,), (first, second), (second, third)]
    assert [tokens.decode(sample.response_ids) for sample in samples] == list(answers)
    assert all(sample.response_ids[-1] == tokens.im_end_id for sample in samples)
    # The last prompt: two screenshots, one response, and what was wrong with the second action.
    text = tokens.decode(samples[2].prompt_ids)
    assert answers[0] not in text and answers[1] in text and "off the screen" in text
    assert samples[2].prompt_ids.count(tokens.image_pad_id) == 2 * vision.num_tokens(screens[first])


def test_taken_from_a_recorded_trajectory():
    step = Step((1, 2), ("old", "new"), (3,), text="Action: wait()", action_error="no")
    trajectory = Trajectory(
        "t", 0, "Do it", "0", "id", "run", "g", "oracle", terminal=TerminalState.DONE, score=1.0, steps=(step,)
    )
    assert Demonstration.from_trajectory(trajectory) == Demonstration(
        "t", "Do it", ("new",), ("Action: wait()",), ("no",)
    )
    with pytest.raises(TrainingError, match="without screenshot or text"):
        Demonstration.from_trajectory(replace(trajectory, steps=(replace(step, text=""),)))


def test_recorded_successes_keep_their_ids():
    step = Step((1, 2, 3), ("h",), (4, 5), (-0.1, -0.2), (3, 3))
    told = Step((), ("h",), (), (), text="Action: wait()")  # an oracle's: no ids
    won = Trajectory(
        "task", 0, "Click", "0", "t", "run", "g", "human", terminal=TerminalState.DONE, score=1.0, steps=(step, told)
    )
    samples = recorded([replace(won, score=0.0), won, replace(won, score=None), won])
    assert [(sample.prompt_ids, sample.response_ids, sample.trajectory) for sample in samples] == [
        ((1, 2, 3), (4, 5), 1), ((1, 2, 3), (4, 5), 3),
    ]  # fmt: skip
    assert all(sample.logprobs == () for sample in samples)  # what they were sampled from is not the policy
