"""What is sent to a vLLM server and read from it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.engines.base.engine import BadResponse, EngineMismatch
from dart_agent.engines.vllm import vllm_wire as wire
from tests.dart_agent.engines.vllm_stub import runs


@given(st.lists(st.floats(-12, 12), min_size=12, max_size=60), st.integers(0, 59))
def test_the_entropy_of_the_most_likely_tokens_is_a_lower_bound(logits, sampled):
    values = np.array(logits) - np.logaddexp.reduce(logits)
    exact = float(-(np.exp(values) * values).sum())
    sampled %= len(values)
    others = np.sort(np.delete(values, sampled))[::-1][: wire.ENTROPY_TOKENS - 1]
    bound = wire.entropy_of([float(values[sampled]), *map(float, others)])
    rest = max(1.0 - math.exp(values[sampled]) - float(np.exp(others).sum()), 1e-12)
    assert bound <= exact + 1e-9
    assert exact - bound <= rest * (math.log(len(values)) + max(0.0, float(others[-1]) - math.log(rest))) + 1e-9


@given(counts=st.lists(st.integers(1, 9), max_size=5))
def test_pads_collapse_to_one_per_image(tokens, counts):
    ids = [7]
    for count in counts:
        ids += [tokens.vision_start_id, *[tokens.image_pad_id] * count, tokens.vision_end_id]
    collapsed = wire.collapse_pads(ids, tokens)
    assert runs(collapsed, tokens.image_pad_id) == [1] * len(counts)
    assert [i for i in collapsed if i != tokens.image_pad_id] == [i for i in ids if i != tokens.image_pad_id]


def test_version_numbers():
    assert [wire.version_number(label, 4) for label in ("default", "7", "v12", "0")] == [4, 7, 12, 0]
    for label in ("", "main", "-1", "v1.5"):
        with pytest.raises(EngineMismatch, match="no version"):
            wire.version_number(label, 0)


FIELDS = ("choices", "token_ids", "prompt_token_ids", "logprobs", "content", "logprob", "weight_versions", "version")
leaves = st.none() | st.integers() | st.text(max_size=5) | st.floats()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
)


@given(values)
def test_reading_anything(data):
    """Whatever a server sends is an answer or a typed error."""
    try:
        answer = wire.read_answer(data)
    except EngineMismatch:
        return
    assert isinstance(answer.response_ids, tuple)


def test_a_page_instead_of_json_is_named():
    with pytest.raises(BadResponse, match=r"a page or a text instead of JSON \('<html>"):
        wire.read_answer("<html>Sign in</html>")
