"""OpenAICompatibleEngine: any hosted model behind OpenAI's chat completions, for evaluation only.

A hosted model returns text: which ids it read and sampled, and how probable they were, stays unknown. So nothing that
comes from here can be trained on: a request for training is refused, and log-probabilities are always empty.

Invariants:
    - The ids of a `Generation` are those of its answer in the given tokenizer; they serve the history and nothing else.
    - What a server's reasoning parser sent apart (`reasoning_content`, `reasoning`) stands in the text between think
      tags, so that it is shown, recorded and not carried out; the history leaves it out, as the servers ask for.
    - A key is sent to the server it was given for and never stored or shown.
"""

import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dart_agent.engines.base.engine import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineMismatch,
    Generation,
    Prompt,
    RequestRefused,
    Sampling,
)
from dart_agent.engines.base.engine_replies import instead_of_json
from dart_agent.engines.http.chat_messages import chat_messages
from dart_agent.engines.http.http_server import HTTPServer
from dart_agent.engines.http.image_encoding import ENCODER
from dart_agent.formats.grammar.reasoning import message_text
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.backoff import Pauses

KEY_ENV = "OPENAI_API_KEY"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0
CUT_OFF = ("length", "max_tokens", "MAX_TOKENS", "repetition")
"""Reasons that mean that the model was cut off, in the words of servers and of what stands behind proxies."""
UNFINISHED = ("error", "abort", "aborted", "cancelled", "canceled", "timeout")
"""Finish reasons of a server that failed amid a response: no action of such a response may be carried out."""
FILTERED = (
    "content_filter", "safety", "prohibited_content", "recitation", "blocklist", "spii", "guardrail_intervened",
)  # fmt: skip
"""Finish reasons, in lower case, of a server that withheld the response or the rest of the response."""


class OpenAICompatibleEngine:
    """An `Engine` for evaluation. Use it within one event loop."""

    def __init__(
        self,
        url: str,
        model: str,
        tokens: ModelTokens,
        *,
        name: str = "",
        key_env: str = KEY_ENV,
        timeout_s: float = 180.0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Remember where the model is; the first call connects.

        Args:
            url: base of the API, such as "https://host/v1".
            model: name that the server gives the model.
            tokens: of the conversation that makes the prompts: the model's own, or any that reads back exactly, such
                as `ModelTokens.plain()`.
            name: what results carry as `Generation.engine`; "" for the model's.
            key_env: environment variable that holds the API key; a server on this machine needs none.
            timeout_s: most seconds for one response, waiting for a busy server included.
            extra: more fields of every request, such as {"reasoning_effort": "low"}.

        Raises:
            ConfigurationError: the key is missing.
        """
        host = urlsplit(url).hostname or ""
        key = os.environ.get(key_env, "")
        if not host:
            raise ConfigurationError(f"{url!r} is no address of an API: give one such as https://host/v1")
        if not key and host not in ("localhost", "127.0.0.1", "::1"):
            raise ConfigurationError(f"no API key for {host}: set the environment variable {key_env}")
        self._server = HTTPServer(url, key=key, key_env=key_env)
        self._model = model
        self._tokens = tokens
        self._name = name or model
        self._timeout, self._extra = timeout_s, dict(extra or {})
        self._in_flight = self._requests = self._generated = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        """Sample one response; a busy server is asked again until the time is over.

        Raises:
            RequestRefused: the response is wanted for training, or the server will not serve this request.
            EngineError: as `VLLMEngine.generate`.
        """
        if sampling.training or sampling.given_ids:
            raise RequestRefused(
                f"{self._name} is a hosted model: it gives neither the ids that it sampled nor their "
                "log-probabilities, so it can be evaluated, but neither trained on nor teach. Use the vllm or "
                "transformers engine"
            )
        body = await self._body(prompt, sampling)
        started = time.monotonic()
        self._in_flight += 1
        try:
            data = await self._ask(body, started + self._timeout)
        finally:
            self._in_flight -= 1
        text, answer, reason = _read(data)
        response_ids = tuple(self._tokens.encode(answer))
        self._requests += 1
        self._generated += len(response_ids)
        seconds = (0.0, time.monotonic() - started)
        return Generation(text, response_ids, (), (0, 0), reason, self._name, seconds)

    async def update_weights(self, path: str, version: int) -> None:
        """Refuse, because the server's weights cannot be changed.

        Raises:
            RequestRefused: always.
        """
        raise RequestRefused(f"{self._name} is a hosted model: its weights cannot be updated")

    async def info(self) -> EngineInfo:
        """Return what this client knows; the server is not asked."""
        return EngineInfo(self._name, self._model, 0, self._in_flight, requests=self._requests, tokens=self._generated)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._server.close()

    async def _body(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        urls = [image.url for image in await ENCODER.encode(prompt.images)]
        body = {
            "model": self._model,
            "messages": chat_messages(prompt, self._tokens, urls),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed % 2**31  # some servers take no larger ones
        return body | self._extra

    async def _ask(self, body: dict[str, Any], deadline: float) -> Any:
        pauses = Pauses(deadline, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return await self._server.ask(
                    "POST", "/chat/completions", json=body, timeout_s=deadline - time.monotonic()
                )
            except EngineBusy as busy:
                await pauses.wait(busy)


def _read(data: Any) -> tuple[str, str, str]:
    """(text with its reasoning, the answer alone, finish reason) of a chat completion."""
    if isinstance(data, Mapping) and data.get("error") and not data.get("choices"):  # with status 200, as proxies do
        error = data["error"]
        said = error.get("message", error) if isinstance(error, Mapping) else error
        raise EngineError(f"the server answered with an error: {str(said)[:300]}")
    if isinstance(data, str):
        raise EngineMismatch(f"{instead_of_json(data)}: is the address the base of the API, such as https://host/v1?")
    try:
        choice = data["choices"][0]
        message = choice["message"]
        text = message_text(message)
        answer = message_text({"content": message.get("content")})
        refusal = message.get("refusal")
        if not text and isinstance(refusal, str):  # what the model says, in a field of its own
            text = answer = refusal
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineMismatch(
            f"the server's answer is no chat completion ({type(error).__name__}: {error}): is the address the base of "
            "the API, such as https://host/v1?"
        ) from None
    if str(reason).lower() in FILTERED:
        raise EngineError(f"the server's content filter withheld the response (finish_reason {reason!r})")
    if reason in UNFINISHED:
        raise EngineError(f"the server did not finish its response (finish_reason {reason!r})")
    if message.get("tool_calls") or message.get("function_call"):
        raise EngineError(
            "the server took the response apart into tool_calls, which are not in its text any more: start it without "
            "a tool parser (vLLM: without --enable-auto-tool-choice)"
        )
    if not text:
        raise EngineError(
            f"the model answered without text (finish_reason {reason!r}): raise max_tokens if it spent them on thinking"
        )
    return text, answer, "length" if reason in CUT_OFF else "stop"
