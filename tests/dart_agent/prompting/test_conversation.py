"""Prompts of a growing history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dart_agent.engines.base.engine import BadResponse
from dart_agent.formats import get_format
from dart_agent.formats.ui_tars_prompts import ui_tars_prompt
from dart_agent.prompting.conversation import Conversation, ConversationConfig, kept
from dart_gym.core.errors import ConfigurationError

IMAGE = "<|vision_start|>" + "<|image_pad|>" * 2 + "<|vision_end|>"


def frame(value: int) -> np.ndarray:
    return np.full((28, 56, 3), value, np.uint8)


def played(tokens, vision, steps: int, **settings) -> Conversation:
    """After `steps` responses, with the next screenshot shown. Response n is "n"; screenshot 2 follows an error."""
    conversation = Conversation(tokens, vision, ConversationConfig(**{"style": "short", **settings}))
    conversation.begin("Do it")
    for step in range(steps + 1):
        conversation.observe(frame(step), "no such place" if step == 2 else "")
        if step < steps:
            conversation.respond(tokens.response(str(step)))
    return conversation


def test_short_prompt_of_several_steps(tokens, vision):
    prompt = played(tokens, vision, 2, screenshots=5).prompt()
    assert prompt.token_ids == tuple(
        tokens.encode_markup(
            f"<|im_start|>user\nDo it{IMAGE}<|im_end|>\n<|im_start|>assistant\n0<|im_end|>\n"
            f"<|im_start|>user\n{IMAGE}<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
            f"<|im_start|>user\nThe last action failed: no such place\n{IMAGE}<|im_end|>\n<|im_start|>assistant\n"
        )
    )
    assert [int(image[0, 0, 0]) for image in prompt.images] == [0, 1, 2]


def test_old_screenshots_and_texts_are_dropped(tokens, vision):
    prompt = played(tokens, vision, 4, screenshots=2, texts=3).prompt()
    assert prompt.token_ids == tuple(
        tokens.encode_markup(
            "<|im_start|>user\nDo it<|im_end|>\n"
            "<|im_start|>assistant\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
            f"<|im_start|>user\n{IMAGE}<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
            f"<|im_start|>user\n{IMAGE}<|im_end|>\n<|im_start|>assistant\n"
        )
    )
    assert [int(image[0, 0, 0]) for image in prompt.images] == [3, 4]


@given(steps=st.integers(0, 12), screenshots=st.integers(1, 6), texts=st.integers(0, 8))
def test_counts(tokens, vision, steps, screenshots, texts):
    prompt = played(tokens, vision, steps, screenshots=screenshots, texts=texts).prompt()
    images = min(steps + 1, screenshots)
    assert len(prompt.images) == images
    assert prompt.token_ids.count(tokens.image_pad_id) == 2 * images
    assert prompt.token_ids.count(tokens.im_start_id) == 1 + min(steps, texts) + 1 + images - (steps < screenshots)
    assert int(prompt.images[-1][0, 0, 0]) == steps


@given(
    steps=st.integers(1, 25),
    block=st.integers(1, 6),
    screenshots=st.integers(1, 6),
    texts=st.integers(0, 12),
    cut=st.sets(st.integers(0, 25)),
)
def test_block_window(tokens, vision, steps, block, screenshots, texts, cut):
    """Between two drops, a prompt and its response are a prefix of the next prompt; drops are `block` steps apart."""
    block = min(block, screenshots)
    texts = max(texts, screenshots - 1) if block > 1 else texts
    config = ConversationConfig(style="short", screenshots=screenshots, texts=texts, block=block)
    conversation = Conversation(tokens, vision, config)
    conversation.begin("Do it")
    drops, before = [], None
    for step in range(steps):
        conversation.observe(frame(step), "no such place" if step % 3 == 2 else "")
        prompt = conversation.prompt()
        shown = [int(image[0, 0, 0]) for image in prompt.images]
        assert shown == list(range(shown[0], step + 1))
        assert min(step + 1, screenshots - block + 1) <= len(shown) <= screenshots
        if before is not None:
            earlier, sampled = before
            whole = (*earlier.token_ids, *sampled)
            extends = prompt.token_ids[: len(whole)] == whole
            same = [np.array_equal(a, b) for a, b in zip(earlier.images, prompt.images, strict=False)]
            if block > 1 and len(prompt.images) > len(earlier.images):
                assert extends and all(same)
            if len(prompt.images) <= len(earlier.images):
                drops.append(step)
        sampled = tokens.response(str(step))[: -1 if step in cut else None]
        conversation.respond(sampled)
        before = prompt, sampled
    assert drops == list(range(screenshots, steps, block))


def test_window_of_block_steps():
    config = ConversationConfig(screenshots=5, texts=6, block=3)
    assert [kept(turns, config) for turns in range(1, 13)] == [(0, 0)] * 5 + [(3, 1)] * 3 + [(6, 4)] * 3 + [(9, 7)]
    sliding = ConversationConfig(screenshots=3, texts=1)
    assert [kept(turns, sliding) for turns in range(1, 6)] == [(0, 0), (0, 0), (0, 1), (1, 2), (2, 3)]


def test_a_block_of_nothing_keeps_half_of_the_screenshots_where_that_is_exact():
    shown = {screenshots: ConversationConfig(screenshots=screenshots, block=0) for screenshots in range(1, 7)}
    assert [config.dropped_at_once for config in shown.values()] == [1, 1, 2, 2, 3, 3]
    for screenshots, config in shown.items():
        assert all(min(turns, screenshots / 2) <= turns - kept(turns, config)[0] for turns in range(1, 30))
    given = ConversationConfig(screenshots=5, block=3)
    assert [kept(turns, shown[5]) for turns in range(1, 50)] == [kept(turns, given) for turns in range(1, 50)]
    # Fewer texts than screenshots: no prompt is a prefix of the next. A preset is its publisher's.
    assert ConversationConfig(screenshots=5, texts=3, block=0).dropped_at_once == 1
    assert ConversationConfig(preset="ui-tars-1.5-7b", block=0).dropped_at_once == 1


def test_a_response_with_an_image_pad_is_refused(tokens, vision):
    conversation = played(tokens, vision, 0)
    for wrong, says in (
        ((5, tokens.image_pad_id, tokens.image_pad_id), "image_pad.* at place 1 of 3"),
        ((tokens.im_start_id,), "im_start"),
        ((tokens.vocab_size,), "no token"),
        ((-1,), "no token"),
    ):
        with pytest.raises(BadResponse, match=says):
            conversation.respond(wrong)
    conversation.respond(tokens.response("fine"))


def test_response_ids_are_kept_as_they_are(tokens, vision):
    odd = [*tokens.encode("8"), *tokens.encode("4"), tokens.im_end_id]
    assert odd[:-1] != tokens.encode("84")
    for sampled in (odd, odd[:-1]):  # ended by itself, or cut off at its longest
        conversation = played(tokens, vision, 0)
        conversation.respond(sampled)
        conversation.observe(frame(1))
        ids = list(conversation.prompt().token_ids)
        assert any(ids[i : i + 3] == odd for i in range(len(ids)))


def test_ui_tars_prompt(tokens, vision):
    conversation = Conversation(tokens, vision, ConversationConfig(language="German"))
    conversation.begin("Do <|im_end|> it")
    conversation.observe(frame(0))
    ids = conversation.prompt().token_ids
    text = (
        f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"{ui_tars_prompt(language='German')}"
    )
    opening = tokens.encode_markup(text)
    assert list(ids[: len(opening)]) == opening
    assert list(ids[len(opening) :]) == [
        *tokens.encode("Do <|im_end|> it"),
        *tokens.encode_markup(f"{IMAGE}<|im_end|>\n<|im_start|>assistant\n"),
    ]


@pytest.mark.parametrize("name", ["ui_tars:doubao", "qwen:3", "computer_13"])
def test_the_prompt_asks_for_the_actions_of_the_format(tokens, vision, name):
    action_format = get_format(name)
    style = "ui_tars" if action_format.name == "ui_tars" else "format"
    conversation = Conversation(tokens, vision, ConversationConfig(style=style), action_format)
    conversation.begin("Do it")
    conversation.observe(frame(0))
    ids = conversation.prompt().token_ids
    described = tokens.encode_markup(action_format.describe())[1:-1]  # the first and last may join with what is beside
    assert any(list(ids[i : i + len(described)]) == described for i in range(len(ids)))


def test_the_prompt_of_ui_tars_is_refused_for_another_format(tokens, vision):
    with pytest.raises(ConfigurationError, match="take style 'format'"):
        Conversation(tokens, vision, ConversationConfig(), get_format("qwen"))


def test_ui_tars_prompt_text():
    text = ui_tars_prompt()
    space = text.split("## Action Space\n\n")[1].split("\n\n## Note")[0].splitlines()
    names = ["click", "left_double", "right_single", "drag", "hotkey", "type", "scroll", "wait", "finished"]
    assert [line.split("(")[0] for line in space] == names
    assert text.startswith("You are a GUI agent. You are given a task and your action history, with screenshots. ")
    assert text.endswith("## User Instruction\n")
    assert "Use English in `Thought` part" in text
    assert 'use "\\n" at the end' in text
    assert "call_user()" in ui_tars_prompt(call_user=True)


def test_misuse(tokens, vision):
    conversation = Conversation(tokens, vision)
    conversation.begin("x")
    with pytest.raises(RuntimeError, match="observe"):
        conversation.prompt()
    with pytest.raises(RuntimeError, match="observe"):
        conversation.respond([1])
    blocks = ({"block": -1}, {"block": 6}, {"block": 2, "texts": 3})
    for wrong in ({"style": "long"}, {"screenshots": 0}, {"texts": -1}, *blocks):
        with pytest.raises(ValidationError, match="|".join(wrong)):
            ConversationConfig(**wrong)
