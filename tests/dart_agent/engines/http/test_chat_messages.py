"""A prompt as the messages of a chat: they render to the prompt, or an error says why they cannot."""

from hypothesis import given
from hypothesis import strategies as st

from dart_agent.engines.base.engine import Prompt, RequestRefused
from dart_agent.engines.http.chat_messages import chat_messages
from dart_agent.engines.http.image_encoding import encode
from tests.dart_agent.engines.vllm_prompts import history
from tests.dart_agent.engines.vllm_stub import VLLMStub


@given(steps=st.integers(0, 6), screenshots=st.integers(1, 5), style=st.sampled_from(["short", "ui_tars"]))
def test_messages_render_to_the_prompt(tokens, vision, steps, screenshots, style):
    prompt = history(tokens, vision, steps, screenshots=screenshots, style=style)
    messages = chat_messages(prompt, tokens, [encode(image).url for image in prompt.images])
    assert tuple(VLLMStub(tokens, vision).rendered(messages)) == prompt.token_ids
    assert messages[0]["role"] == ("system" if style == "ui_tars" else "user")
    assert {message["role"] for message in messages} <= {"system", "user", "assistant"}


@given(ids=st.lists(st.integers(0, 14), max_size=30))
def test_messages_of_anything(tokens, ids):
    """Any ids become messages or a typed error."""
    try:
        messages = chat_messages(Prompt((*ids, *tokens.encode_markup("<|im_start|>assistant\n"))), tokens, [])
    except RequestRefused:
        return
    assert all(set(message) == {"role", "content"} for message in messages)
