"""The one check of what engines return, by tables: what passes, and what is a bad response."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_agent.engines.base import engine_replies as replies
from dart_agent.engines.base.engine import BadResponse, EngineError, EngineInfo, Generation, Prompt, Sampling
from dart_agent.engines.remote import engine_frames
from dart_agent.engines.vllm import vllm_wire

GOOD = Generation("ok", (5, 6), (-0.5, -0.25), (1, 2), "stop", "r0", (0.1, 0.2), 0.3)
ASKED = Sampling(max_tokens=4, training=True, suppressed_ids=(9,), ids_below=100)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)

BAD_IDS = [
    [-1], [5279552648203111001], [100], [10**400], [True], [np.True_], [5.0], ["5"], [None], [math.nan], [[5]],
    [b"5"], "56", {"0": 5}, None, 5, np.array([5]),
]  # fmt: skip
BAD_LOGPROBS = [
    [math.nan], [math.inf], [-math.inf], [-9999.0], [-1e30], [0.7], [True], ["-0.5"], [None], [[-0.5]], [],
    [-1.0, -1.0], [10**400], "x", None, -0.5,
]  # fmt: skip


@pytest.mark.parametrize("ids", BAD_IDS, ids=repr)
def test_what_is_no_token_is_a_bad_response(ids):
    with pytest.raises(BadResponse):
        replies.token_ids(ids, below=100)
    with pytest.raises(BadResponse):
        replies.checked(replace(GOOD, response_ids=ids, logprobs=(-0.5,)), ASKED)


@pytest.mark.parametrize("logprobs", BAD_LOGPROBS, ids=repr)
def test_what_is_no_log_probability_is_a_bad_response(logprobs):
    with pytest.raises(BadResponse):
        replies.logprobs(logprobs, 1)


def test_sound_values_pass_as_plain_ones():
    assert replies.token_ids([0, np.int64(99)], below=100) == (0, 99)
    assert type(replies.token_ids([np.int32(7)])[0]) is int
    assert replies.logprobs([0, 1e-4, -699.0, np.float32(-0.5)], 4) == (0.0, 1e-4, -699.0, -0.5)
    assert replies.checked(GOOD, ASKED) == GOOD
    hosted = replace(GOOD, logprobs=(), response_ids=tuple(range(9)))
    assert replies.checked(hosted, Sampling(max_tokens=4)).logprobs == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"text": None}, {"text": b"ok"}, {"version": (2, 1)}, {"version": (1,)}, {"version": 1},
        {"version": (1, 10**30)},
        {"version": (-2, 1)}, {"version": (True, 1)}, {"version": ("1", "2")}, {"finish_reason": None},
        {"finish_reason": "error"}, {"finish_reason": ["stop"]}, {"seconds": (0.1,)}, {"seconds": (math.nan, 0.0)},
        {"seconds": None}, {"entropy": math.nan}, {"entropy": "0.1"}, {"engine": 3},
        {"routing": "1"}, {"routing": b"odd"}, {"routing": None},
        {"response_ids": (), "logprobs": ()},
        {"response_ids": (5, 9)}, {"response_ids": (1,) * 5, "logprobs": (-1.0,) * 5}, {"logprobs": ()},
    ],
    ids=str,
)  # fmt: skip
def test_a_generation_with_one_wrong_field_is_a_bad_response(changed):
    with pytest.raises(BadResponse):
        replies.checked(replace(GOOD, **changed), ASKED)


def test_experts_that_an_engine_does_not_report_are_missed_where_they_are_asked_for():
    asked = replace(ASKED, routing=True)
    with pytest.raises(BadResponse, match="does not report which experts it took.*--enable-return-routed-experts"):
        replies.checked(GOOD, asked)
    told = replace(GOOD, routing=bytes(2 * 6 * len(GOOD.response_ids)))
    assert replies.checked(told, asked) == told
    assert engine_frames.read_generation(engine_frames.generation_fields(told), asked) == told


def test_something_else_than_a_generation_is_a_bad_response():
    for value in (None, "text", {"text": "ok"}, ("ok", (5,))):
        with pytest.raises(BadResponse):
            replies.checked(value, ASKED)  # type: ignore[arg-type]


def test_half_a_surrogate_pair_can_be_written():
    assert replies.checked(replace(GOOD, text="a\ud800b"), ASKED).text.encode()


@pytest.mark.thorough
@given(ANYTHING)
def test_readers_raise_nothing_but_engine_errors(value):
    """Of a frame, of a state, of an answer over HTTP: whatever arrives, it is read or it is a bad response."""
    for read in (
        lambda: engine_frames.read_generation(value, ASKED),
        lambda: replies.engine_info(value),
        lambda: vllm_wire.read_answer(value),
        lambda: vllm_wire.read_answer({"choices": [value], "prompt_token_ids": [1]}),
        lambda: vllm_wire.read_answer(answered(token_ids=value)),
        lambda: vllm_wire.read_answer(answered(logprobs=value)),
        lambda: vllm_wire.read_answer(answered(logprobs={"content": value})),
        lambda: vllm_wire.read_answer(answered(logprobs={"content": [{"logprob": value}] * 2})),
        lambda: vllm_wire.read_answer(answered(weight_versions=value)),
        lambda: vllm_wire.read_answer(answered(finish_reason=value)),
        lambda: vllm_wire.read_answer({**answered(), "prompt_token_ids": value}),
        lambda: vllm_wire.version_number(str(value), 0),
    ):
        try:
            read()
        except EngineError:
            pass


def answered(**changed):
    choice = {"token_ids": [5, 6], "finish_reason": "stop", "logprobs": {"content": [{"logprob": -0.5}] * 2}} | changed
    return {"choices": [choice], "prompt_token_ids": [1, 2], "model": "policy"}


def test_an_answer_over_http_is_held_to_the_request():
    prompt = Prompt((1, 2))
    vllm_wire.check_answer(vllm_wire.read_answer(answered()), prompt, ASKED, model="policy")
    for asked in (replace(ASKED, ids_below=6), replace(ASKED, suppressed_ids=(6,)), replace(ASKED, max_tokens=1)):
        with pytest.raises(BadResponse):
            vllm_wire.check_answer(vllm_wire.read_answer(answered()), prompt, asked, model="policy")
    aborted = vllm_wire.read_answer(answered(token_ids=None, logprobs=None, finish_reason="abort"))
    vllm_wire.check_answer(aborted, prompt, ASKED, model="policy")  # it was cut off before its first token


def test_the_state_of_an_engine_is_checked():
    info = EngineInfo("r0", "/m", 3, busy_s=1.5)
    assert replies.engine_info(dataclasses.asdict(info)) == info
    for changed in ({"version": "3"}, {"busy_s": math.nan}, {"in_flight": -1}, {"name": None}, {"more": 1}):
        with pytest.raises(BadResponse):
            replies.engine_info(dataclasses.asdict(info) | changed)
