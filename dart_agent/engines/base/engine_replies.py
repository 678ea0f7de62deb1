"""The one check of what engines return: types and ranges of ids, log-probabilities, versions, lengths and states.

A server, a plug-in, or a proxy between them may return anything: strings, NaN, ids of another tokenizer, HTML.
Every engine that reads a wire, the engine pool and the policies use these functions. A violation is a `BadResponse` of
that replica: the request is sent to another replica, and the response is never recorded.

Invariants:
    - A value is taken as it is or refused. Nothing is rounded, clipped or converted from text.
    - What these functions return consists of plain Python numbers and tuples.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from dart_agent.engines.base import expert_routing
from dart_agent.engines.base.engine import BadResponse, EngineInfo, Generation, Sampling

HIGHEST_ID = 2**31 - 1
LOWEST_LOGPROB, HIGHEST_LOGPROB = -700.0, 1e-3
"""Limits of the log-probability of a token that was sampled. e^-700 is the end of what a float64 can tell from 0: what
lies below stands for minus infinity (vLLM writes -9999.0); a little above 0 is rounding."""
HIGHEST_VERSION = 2**62
UNKNOWN_VERSION = -1
FINISH_REASONS = ("stop", "length")


def instead_of_json(text: str) -> str:
    """Return what to say where a server answered with a page or a text; the next step is the caller's."""
    return f"the server answered with a page or a text instead of JSON ({text.strip()[:60]!r})"


def integer(value: Any, what: str, low: int, high: int) -> int:
    """Return an integer of [low, high] as an int. Raises `BadResponse`, also for a bool, a float or text."""
    try:
        number = None if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise BadResponse(f"{what} is {_shown(value)}, which is no integer")
    if not low <= number <= high:
        raise BadResponse(f"{what} is {_shown(value)}, which is outside [{low}, {high}]")
    return number


def number(value: Any, what: str, low: float, high: float) -> float:
    """Return a finite number of [low, high] as a float. Raises `BadResponse`, also for a bool or text."""
    if isinstance(value, (bool, str, bytes)) or type(value).__name__ in ("bool", "bool_"):
        raise BadResponse(f"{what} is {_shown(value)}, which is no number")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadResponse(f"{what} is {_shown(value)}, which is no number") from None
    if not low <= found <= high:  # NaN is in no interval
        raise BadResponse(f"{what} is {_shown(value)}, which is outside [{low:g}, {high:g}]")
    return found


def items(value: Any, what: str) -> Sequence[Any]:
    """Return a list or tuple as it is. Raises `BadResponse` for anything else."""
    if not isinstance(value, (list, tuple)):
        raise BadResponse(f"{what} is {_shown(value)}, which is no list")
    return value


def token_ids(value: Any, *, below: int | None = None, what: str = "token") -> tuple[int, ...]:
    """Return token ids as a tuple of ints. Raises `BadResponse` for what cannot be an id.

    Args:
        value: what the engine returned.
        below: number of ids that the tokenizer has; a model's head may have more rows than that.
        what: names the kind of ids in a message.
    """
    listed = items(value, f"the list of {what} ids")
    limit = HIGHEST_ID if below is None else below - 1
    if not listed or (set(map(type, listed)) == {int} and 0 <= min(listed) <= max(listed) <= limit):
        return tuple(listed)
    return tuple(integer(one, f"{what} {place} of the response", 0, limit) for place, one in enumerate(listed))


def logprobs(value: Any, count: int) -> tuple[float, ...]:
    """Return the log-probabilities of `count` sampled tokens. Raises `BadResponse`.

    A value that stands for minus infinity is refused: no token of probability 0 can have been sampled.
    """
    listed = items(value, "the list of log-probabilities")
    if len(listed) != count:
        raise BadResponse(f"there are {count} tokens and {len(listed)} log-probabilities: the numbers must agree")
    if not listed:
        return ()
    plain = set(map(type, listed)) == {float} and not math.isnan(sum(listed))  # minimum and maximum may miss NaN
    if plain and LOWEST_LOGPROB <= min(listed) <= max(listed) <= HIGHEST_LOGPROB:
        return tuple(listed)
    found = []
    for place, one in enumerate(listed):
        try:
            found.append(number(one, f"the log-probability of token {place}", LOWEST_LOGPROB, HIGHEST_LOGPROB))
        except BadResponse as error:
            raise BadResponse(
                f"{error}: the weights or the server's numeric type are broken (try --dtype bfloat16 or float32, and "
                "look at the checkpoint for NaN)"
            ) from None
    return tuple(found)


def finish_reason(value: Any, allowed: Sequence[str] = FINISH_REASONS) -> str:
    """Return why a response ended. Raises `BadResponse` for a reason that is not `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise BadResponse(f"the response ended for the reason {_shown(value)}, expected {' or '.join(allowed)}")
    return value


def versions(value: Any) -> tuple[int, int]:
    """Return (oldest, newest) version of the weights; -1 is an unknown one. Raises `BadResponse`."""
    pair = items(value, "the pair of versions")
    if len(pair) != 2:
        raise BadResponse(f"the pair of versions has {len(pair)} parts")
    oldest, newest = (integer(one, "a version of the weights", UNKNOWN_VERSION, HIGHEST_VERSION) for one in pair)
    if oldest > newest:
        raise BadResponse(f"the oldest version of the weights, {oldest}, is newer than the newest, {newest}")
    return oldest, newest


def text(value: Any, what: str) -> str:
    """Return a text that can be written as UTF-8. Raises `BadResponse` for anything else but a str."""
    if not isinstance(value, str):
        raise BadResponse(f"{what} is {_shown(value)}, which is no text")
    return value if value.isascii() else value.encode(errors="replace").decode()  # half a surrogate pair is "?"


def check_suppressed(response_ids: Sequence[int], sampling: Sampling) -> None:
    """Look whether a response holds a token that was not to be sampled. Raises `BadResponse`."""
    suppressed = set(sampling.suppressed_ids)
    forbidden = next((token for token in response_ids if token in suppressed), None)
    if forbidden is not None:
        raise BadResponse(
            f"the server sampled token {forbidden}, which was forbidden: it ignores logit_bias (suppressed_ids); its "
            "log-probabilities are not the trainer's either"
        )


def checked(generation: Generation, sampling: Sampling) -> Generation:
    """Return what an engine generated, as plain values. Raises `BadResponse` for a violation of type or range."""
    if not isinstance(generation, Generation):
        raise BadResponse(f"the engine returned a {type(generation).__name__} instead of a Generation")
    ids = token_ids(generation.response_ids, below=sampling.ids_below)
    check_suppressed(ids, sampling)
    if sampling.given_ids and ids != sampling.given_ids:
        raise BadResponse(
            f"the engine was given a response of {len(sampling.given_ids)} tokens and returned another one: it "
            "samples, and cannot say how likely given tokens are (Sampling.given_ids)"
        )
    if len(ids) > sampling.length and generation.logprobs:
        raise BadResponse(f"the response has {len(ids)} tokens, at most {sampling.length} were asked for")
    if sampling.training and not ids:
        raise BadResponse("the response is empty")
    listed = items(generation.logprobs, "the list of log-probabilities")
    seconds = items(generation.seconds, "the pair of times")
    if len(seconds) != 2:
        raise BadResponse(f"the pair of times has {len(seconds)} parts")
    queued, computed = (number(one, "a time in seconds", 0.0, 1e9) for one in seconds)
    entropy = generation.entropy
    if sampling.routing and not generation.routing:
        raise BadResponse(
            "the engine does not report which experts it took, and trainer.replay_routing asks for them: a vLLM server "
            "does with --enable-return-routed-experts, for a mixture of experts"
        )
    return replace(
        generation,
        text=text(generation.text, "the text of the response"),
        response_ids=ids,
        logprobs=logprobs(listed, len(ids)) if listed or sampling.training else (),
        version=versions(generation.version),
        finish_reason=finish_reason(generation.finish_reason),
        engine=text(generation.engine, "the engine's name"),
        seconds=(queued, computed),
        entropy=None if entropy is None else number(entropy, "the mean entropy", -1e-3, 1e3),
        routing=routed(generation.routing, len(ids)),
    )


def routed(value: Any, tokens: int) -> bytes:
    """Return the packed experts of a response of `tokens` tokens, or none of them. Raises `BadResponse`."""
    if not isinstance(value, bytes):
        raise BadResponse(f"the experts of the response are {_shown(value)} instead of bytes")
    if value:
        try:
            expert_routing.unpack(value, tokens)
        except ValueError as error:
            raise BadResponse(f"the experts of the response cannot be read: {error}") from None
    return value


def engine_info(values: Any) -> EngineInfo:
    """Return an engine's state from plain values. Raises `BadResponse`."""
    known = {field.name: field for field in fields(EngineInfo)}
    if not isinstance(values, Mapping) or not {"name", "model", "version"} <= values.keys() <= known.keys():
        raise BadResponse(f"the engine's state is {_shown(values)}: is it another version of this package?")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("name", "model"):
            found[name] = text(value, f"the engine's {name}")
        elif name in ("busy_s", "kv_use"):
            found[name] = number(value, f"the engine's {name}", 0.0, 1e12)
        else:
            low = UNKNOWN_VERSION if name == "version" else 0
            found[name] = integer(value, f"the engine's {name}", low, HIGHEST_VERSION)
    return EngineInfo(**found)


def _shown(value: Any) -> str:
    """A value for a message, cut; an int of a million digits cannot be written at all."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a number of {value.bit_length()} bits"
    try:
        said = repr(value)
    except Exception as error:  # a plug-in's object may not even be shown
        return f"a {type(value).__name__} ({type(error).__name__})"
    return said if len(said) <= 80 else f"{said[:77]}..."
