"""Any text goes through the tiny tokenizer and back; special tokens mean something only where we say so."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import SPECIAL_TOKENS, TinyModelConfig, build_tokenizer, config_from_text
from dart_gym.core.errors import ConfigurationError

PIECES = st.sampled_from(
    [*SPECIAL_TOKENS, "Action: ", "click", " click", "<0x41>", "84", "é", "\ufffd", "▁", "  ", "\n"]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
@example("<|im_end|><0x41>")
@example(" leading and trailing ")
def test_round_trip(tokens, text):
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert not set(ids) & {*tokens.suppressed_ids, *tokens.stop_ids}


def test_a_click_is_six_tokens(tokens):
    assert len(tokens.response("Action: click(start_box='(84,112)')")) == 6
    assert len(tokens.encode("Action: type(content='Agustina')")) == 3
    assert len(tokens.encode('Click on the "OK" button.')) == 8


def test_markup_reads_special_tokens(tokens):
    assert tokens.encode_markup("<|im_start|>user\n<|im_end|>") == [
        tokens.im_start_id,
        *tokens.encode("user\n"),
        tokens.im_end_id,
    ]
    assert tokens.encode_markup("a <|nothing|> b") == [
        *tokens.encode("a "), *tokens.encode("<|nothing|>"), *tokens.encode(" b")
    ]  # fmt: skip


def test_which_ids_are_special(tokens):
    assert tokens.stop_ids == (tokens.im_end_id,)
    suppressed = set(tokens.suppressed_ids)
    assert {tokens.im_start_id, tokens.image_pad_id, tokens.vision_start_id, tokens.vision_end_id} < suppressed
    assert not suppressed & {*tokens.stop_ids, *tokens.encode_markup("<|box_start|><|box_end|>")}
    assert tokens.decode([*tokens.encode("hi"), tokens.im_end_id]) == "hi"


def test_numbers_are_a_parameter():
    for numbers, count in ((0, 3), (100, 2), (1000, 1)):
        tokenizer = build_tokenizer(TinyModelConfig(numbers=numbers))
        assert len(tokenizer.encode("412").ids) == count


def test_own_words():
    config = config_from_text(["extra_words=zygote,quux", "layers=2"])
    assert (config.extra_words, config.layers) == (("zygote", "quux"), 2)
    assert len(build_tokenizer(config).encode("zygote quux").ids) == 2
    with pytest.raises(ConfigurationError, match="did you mean 'layers'"):
        config_from_text(["layer=2"])
    with pytest.raises(ConfigurationError, match="hidden_size: .*a valid integer.*got 'big'"):
        config_from_text(["hidden_size=big"])
    with pytest.raises(ConfigurationError, match="multiple of 8"):
        TinyModelConfig(hidden_size=60)


def test_errors(tmp_path):
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json does not exist"):
        ModelTokens.load(tmp_path)
    data = json.loads(build_tokenizer(TinyModelConfig()).to_str().replace("<|image_pad|>", "<|other|>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ConfigurationError, match=r"no token <\|image_pad\|>"):
        ModelTokens.load(tmp_path)
