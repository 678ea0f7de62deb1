"""Messages to and from a vLLM server: request bodies, answers, and the checks that an answer must pass. Pure.

Two routes say the same thing. `/inference/v1/generate` takes and gives token ids; `/v1/chat/completions` takes
messages, and gives the ids that it made of them. Field names are those of vLLM 0.32 and 0.33.

Invariants:
    - Images cross as PNGs that already have the model's size, and every one stands in the ids as ONE pad: given
      expanded pads the server answers 200 to another prompt. The ids that it reports are compared with the prompt's.
    - The name of an image is a hash of its content: the server may take it for one that it has.
    - Nothing biases the log-probabilities: no top_p, top_k, penalty; forbidden tokens get the lowest bias there is,
      which leaves them less than e^-100 / e^(100 / temperature) of the probability.
"""

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from dart_agent.engines.base import engine_replies as replies
from dart_agent.engines.base import expert_routing
from dart_agent.engines.base.engine import BadResponse, EngineMismatch, Prompt, Sampling
from dart_agent.engines.http.chat_messages import chat_messages
from dart_agent.engines.http.image_encoding import EncodedImage
from dart_agent.models.model_tokens import ModelTokens

FORBIDDING_BIAS = -100.0
ENTROPY_TOKENS = 8
"""Tokens of each place, the sampled one among them, whose log-probabilities a server tells for the entropy."""
# Said in full: what a request leaves open, the server takes from the model's generation_config.json.
UNBIASED = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
FIRST_VERSION = "default"  # what a server calls its weights before it is told a version


class OtherPrompt(EngineMismatch):
    """The server sampled a response to another prompt."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a server.

    Attributes:
        prompt_ids: as the server wrote them; `_check_prompt` compares them.
        versions: label the weights that sampled it; empty where the server does not say.
        entropies: of the distribution of each id (`entropy_of`); empty where the server was not asked.
        routing: packed experts of each id; empty where the server does not report them.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    versions: tuple[str, ...] = ()
    model: str = ""
    entropies: tuple[float, ...] = ()
    routing: bytes = b""


def entropy_of(logprobs: Sequence[float]) -> float:
    """Entropy in nats by the log-probabilities of the sampled token, which is first, and of the most likely others.

    The rest of the probability counts as if it lay on tokens as likely as the least likely of those, or on one where it
    is less than that. No other token is more likely, so that this is the least that the entropy can be.
    """
    told = sum(-value * math.exp(value) for value in logprobs)
    rest = 1.0 - sum(map(math.exp, logprobs))
    if rest <= 0.0:
        return told
    return told - rest * min(math.log(rest), *logprobs[1:])


def _entropies(content: Sequence[Any], count: int) -> tuple[float, ...]:
    """Those of each id; () where some were not told."""
    found = []
    for entry in content:
        told = entry.get("top_logprobs") or ()
        listed = [replies.number(one["logprob"], "a log-probability", -1e4, 1e-3) for one in told]
        if len(listed) < 2:
            return ()
        found.append(entropy_of(listed))
    return tuple(found) if len(found) == count else ()


def _routing(told: str | None, count: int) -> bytes:
    """Experts of the places that the ids were sampled from, the last ones of a `.npy` of (places, layers, k)."""
    if not told or not count:
        return b""
    data = base64.b64decode(told, validate=True)
    file = io.BytesIO(data)
    form = np.lib.format
    read = form.read_array_header_1_0 if form.read_magic(file) == (1, 0) else form.read_array_header_2_0
    shape, by_columns, number = read(file)
    if len(shape) != 3 or shape[0] < count or by_columns or number.kind not in "iu":
        raise ValueError(f"routed_experts of shape {shape} and type {number} for {count} tokens")
    return expert_routing.pack(np.frombuffer(data[file.tell() :], number).reshape(shape)[-count:])


def collapse_pads(token_ids: Sequence[int], tokens: ModelTokens) -> list[int]:
    """The ids with one pad for each image instead of one for each of its tokens."""
    ids = np.array(token_ids, np.int64)
    kept = ids != tokens.image_pad_id
    kept[1:] |= kept[:-1]
    kept[:1] = True
    return ids[kept].tolist()


def generate_body(
    prompt: Prompt, sampling: Sampling, tokens: ModelTokens, *, model: str, cache_salt: str
) -> dict[str, Any]:
    """The body of `POST /inference/v1/generate`, without its images; see `with_images`."""
    return {
        "model": model,
        "token_ids": collapse_pads(prompt.token_ids, tokens),
        "sampling_params": _sampling(sampling) | {"logprobs": _alternatives(sampling), "detokenize": False},
        "return_token_ids": True,
        "cache_salt": cache_salt,
    }


def with_images(body: dict[str, Any], images: Sequence[EncodedImage]) -> bytes:
    """The body of a request in JSON, with its images: by their names, and with their pixels where they have them."""
    head = orjson.dumps(body)
    if not images:
        return head
    pieces = [head[:-1], b', "content_parts": ']
    for image, opening in zip(images, b"[" + b"," * (len(images) - 1), strict=True):
        pieces += [b'%c{"type": "image_url", "uuid": "%s"' % (opening, image.name.encode())]
        if image.base64:  # joined as it is: JSON has nothing to escape in it
            pieces += [b', "url": "data:image/png;base64,', image.base64, b'"']
        pieces.append(b"}")
    return b"".join((*pieces, b"]}"))


def chat_body(
    prompt: Prompt,
    sampling: Sampling,
    tokens: ModelTokens,
    urls: Sequence[str],
    *,
    model: str,
    cache_salt: str,
    begun: int = 0,
) -> dict[str, Any]:
    """The body of `POST /v1/chat/completions`; the prompt ends in `begun` ids of a response that goes on.

    Raises:
        RequestRefused: the prompt is no chat.
    """
    return {
        "model": model,
        "messages": chat_messages(prompt, tokens, urls, begun=begun),
        **({"add_generation_prompt": False, "continue_final_message": True} if begun else {}),
        **_sampling(sampling),
        "logprobs": True,
        "top_logprobs": _alternatives(sampling),
        "return_token_ids": True,
        "return_weight_versions": True,
        "add_special_tokens": False,
        "cache_salt": cache_salt,
    }


def _alternatives(sampling: Sampling) -> int:
    """For how many tokens of each place, the sampled one among them, the server tells the log-probability."""
    return ENTROPY_TOKENS if sampling.entropy else 0


def _sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        **UNBIASED,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,  # the stop ids alone say what ends a response
        "logit_bias": {str(token_id): FORBIDDING_BIAS for token_id in sampling.suppressed_ids},
    }


def read_answer(data: Any) -> Answer:
    """The answer in a response of either route, its values checked by type and range.

    Raises:
        BadResponse: it lacks what training needs, or a value is invalid.
    """
    if isinstance(data, str):
        raise BadResponse(f"{replies.instead_of_json(data)}: is vLLM there?")
    try:
        [choice] = data["choices"]
        reason = replies.finish_reason(choice.get("finish_reason"), ("stop", "length", "abort"))
        # The chat route has put the prompt's ids beside the choices, and has had them within.
        prompt_ids = data.get("prompt_token_ids") or choice.get("prompt_token_ids")
        response_ids, content = choice["token_ids"], (choice.get("logprobs") or {}).get("content") or []
        if reason == "abort" and not response_ids:  # cut off before it began: there is nothing to read
            return Answer((), (), (), reason, model=str(data.get("model") or ""))
        if prompt_ids is None or response_ids is None:
            raise KeyError("prompt_token_ids" if prompt_ids is None else "token_ids")
        spans = choice.get("weight_versions") or data.get("weight_versions") or []
        ids = replies.token_ids(response_ids)
        return Answer(
            prompt_ids=tuple(replies.items(prompt_ids, "the list of prompt token ids")),
            response_ids=ids,
            # JSON has no NaN: servers write null instead
            logprobs=replies.logprobs(
                [math.nan if (p := entry["logprob"]) is None else p for entry in content], len(ids)
            ),
            finish_reason=reason,
            versions=tuple(str(span["version"]) for span in spans),
            model=str(data.get("model") or ""),
            entropies=_entropies(content, len(ids)),
            routing=_routing(choice.get("routed_experts"), len(ids)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResponse(
            f"the server's answer cannot be read ({type(error).__name__}: {error}); it must return token ids and "
            "log-probabilities: vLLM 0.32 or newer does (return_token_ids)"
        ) from None


def check_answer(answer: Answer, prompt: Prompt, sampling: Sampling, *, model: str) -> None:
    """Look whether an answer is whole and to this request. Raises `EngineMismatch`, `BadResponse`."""
    if answer.model and answer.model != model:
        raise EngineMismatch(
            f"the server answered as model {answer.model!r}, asked was {model!r}: is this the right address?"
        )
    if not answer.response_ids and answer.finish_reason == "abort":
        return
    _check_prompt(answer, prompt)
    if not answer.response_ids:
        raise BadResponse("the server returned an empty response without having been aborted")
    if len(answer.response_ids) > sampling.max_tokens:
        raise BadResponse(f"the server returned {len(answer.response_ids)} tokens, asked for {sampling.max_tokens}")
    replies.token_ids(answer.response_ids, below=sampling.ids_below)
    replies.check_suppressed(answer.response_ids, sampling)


def _check_prompt(answer: Answer, prompt: Prompt) -> None:
    """Look whether an answer is to this prompt. Raises `OtherPrompt`, and `BadResponse` where it names no ids.

    Only ids that differ are looked at one by one: a prompt with five screenshots has thousands of them.
    """
    if answer.prompt_ids != prompt.token_ids:
        theirs = replies.token_ids(answer.prompt_ids, what="prompt token")
        raise OtherPrompt(_difference(theirs, prompt.token_ids))


def _difference(theirs: Sequence[int], ours: Sequence[int]) -> str:
    """Say where two prompts part."""
    place = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))
    return (
        f"the server used another prompt: {len(theirs)} tokens instead of {len(ours)}, other ones from place {place}. "
        "Where the lengths differ by tokens of images, its min_pixels and max_pixels are not the policy's (set "
        "--mm-processor-kwargs, or serve the directory that the policy reads); else its tokenizer or chat template is "
        "another one, and only a server started with --enable-scale-out takes the ids as they are"
    )


def probe(tokens: ModelTokens) -> tuple[Prompt, Sampling, dict[str, Any]]:
    """A request that shows which log-probabilities a server returns: with one token allowed, that one is certain."""
    start = [tokens.im_start_id]
    end = [tokens.im_end_id]
    newline = tokens.encode("\n")
    ids = [*start, *tokens.encode("user\nok"), *end, *newline, *start, *tokens.encode("assistant\n")]
    return Prompt(tuple(ids)), Sampling(1), {"allowed_token_ids": [tokens.im_end_id]}


def read_scores(data: Any, whole: Prompt, given: Sequence[int]) -> tuple[float, ...]:
    """The log-probabilities of the last ids of a prompt, out of the answer to a request with `prompt_logprobs`.

    The field has an entry for each id of the prompt: a map of ids to `{"logprob": ...}`, null for the first one.

    Raises:
        EngineMismatch: the answer is about another prompt.
        BadResponse: it lacks a value, or one is invalid.
    """
    answer = read_answer(data)
    _check_prompt(answer, whole)
    try:
        entries = data["prompt_logprobs"][-len(given) :]
        if len(data["prompt_logprobs"]) != len(whole.token_ids):
            raise ValueError(f"{len(data['prompt_logprobs'])} entries for {len(whole.token_ids)} tokens")
        values = [entry[str(token)]["logprob"] for entry, token in zip(entries, given, strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise BadResponse(
            f"the server did not say how likely the given tokens are ({type(error).__name__}: {error}): its answer "
            "needs prompt_logprobs"
        ) from None
    return replies.logprobs(values, len(given))


def check_probe(answer: Answer) -> None:
    """Check the answer to `probe`.

    Raises:
        EngineMismatch: if its log-probabilities are those before temperature and suppression.
    """
    if len(answer.logprobs) != 1 or not abs(answer.logprobs[0]) < 1e-3:
        raise EngineMismatch(
            f"the only token that the server may sample has the log-probability {answer.logprobs}, not 0: it returns "
            "them before temperature and forbidden tokens. Start it with --logprobs-mode processed_logprobs"
        )


def version_number(label: str, first: int) -> int:
    """Parse a version's label: "7" and "v7" are 7, and a server's own label is `first`.

    Raises:
        EngineMismatch: if the label names no version.
    """
    if label == FIRST_VERSION:
        return first
    match = re.fullmatch(r"v?([0-9]{1,18})", label)
    if match is None:
        raise EngineMismatch(f"the server calls its weights {label!r}, which is no version: another program updates it")
    return int(match[1])
