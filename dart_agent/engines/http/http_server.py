"""HTTPServer: the client's side of a server that speaks JSON over HTTP; every failure is an `EngineError`."""

import io
import ssl
from dataclasses import dataclass
from json import loads as parse
from typing import Any

import aiohttp
import orjson

from dart_agent.engines.base.engine import EngineBusy, EngineError, EngineMismatch, EngineTimeout, RequestRefused
from dart_gym.core.tls_advice import tls_advice
from dart_gym.utils.waits import waiting_for

JSON = {"Content-Type": "application/json"}
LARGE = 1 << 20
KEEPALIVE_S = 3.0
"""How long a connection may lie idle and be used again. Servers close theirs after 5 s (uvicorn's default, and so
vLLM's), which a busy event loop has not seen yet when it sends the next request; POST is not sent twice."""
MOST_BYTES = 256 << 20
"""Bytes of the largest answer that is read; the ids and log-probabilities of the longest responses take a tenth."""
_BROKEN_OFF = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError)


@dataclass(frozen=True, slots=True)
class _Answer:
    url: str
    status: int
    reason: str
    kind: str
    body: bytes

    def json(self) -> Any:
        """Raises ValueError where it is no JSON."""
        try:
            return orjson.loads(self.body)
        except ValueError:
            try:
                return parse(self.body)  # takes NaN and Infinity, which some servers write
            except RecursionError:
                raise ValueError("it is nested too deeply") from None

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class RouteMissing(EngineMismatch):
    """The server has no such route, or will not serve it."""


class HTTPServer:
    """A server that speaks JSON over HTTP; what can go wrong becomes a type of `EngineError`."""

    def __init__(self, url: str, *, key: str, key_env: str) -> None:
        """Remember where it is; the first request connects. A message about a wrong key names `key_env`."""
        self.url, self._key_env = url.rstrip("/"), key_env
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: dict[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Any:
        """Send one request, with a value or with JSON as `content`; return the answer's JSON, None for an empty one.

        Raises:
            EngineTimeout: no answer within `timeout_s`.
            EngineBusy: 429 or 503.
            RouteMissing: there is no such route.
            RequestRefused: any other 4xx.
            EngineError: no connection, or 5xx.
        """
        if json is not None:
            content = orjson.dumps(json)
        try:
            with waiting_for(f"an answer of {self.url}{path}", timeout_s):
                answer = await self._send(method, path, content, params, timeout_s)
        except TimeoutError as error:
            raise EngineTimeout(
                f"{self.url}{path} did not answer within {timeout_s:.1f} s ({type(error).__name__}): is it overloaded, "
                "or is the time limit too short for this model?"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if advice := tls_advice(error):
                raise EngineError(f"no connection to {self.url}: {advice}") from error
            why = f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            if isinstance(error, _BROKEN_OFF):
                raise EngineError(f"{self.url}{path} broke off its answer {why}: did the server end?") from error
            raise EngineError(f"no server at {self.url} {why}; is it running?") from error
        if 200 <= answer.status < 300:
            return _json(answer) if answer.body else None
        raise self._error(path, answer)

    async def _send(
        self, method: str, path: str, content: bytes | None, params: dict[str, str] | None, timeout_s: float
    ) -> _Answer:
        if self._client is None:  # it belongs to a running loop
            # A pool without limit never makes a request wait behind others; each says its own timeout.
            # aiohttp's own context trusts whom SSL_CERT_FILE named when it was imported.
            trust = ssl.create_default_context() if self.url.startswith("https") else True
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=trust)
            self._client = aiohttp.ClientSession(headers=self._headers, connector=connector, trust_env=False)
        if self._client.closed:
            raise aiohttp.ClientConnectionError("the client was closed")
        timeout = aiohttp.ClientTimeout(total=max(0.001, timeout_s))
        headers = JSON if content is not None else None
        async with self._client.request(
            method,
            f"{self.url}{path}",
            data=content if content is None or len(content) < LARGE else io.BytesIO(content),  # written in pieces
            headers=headers,
            params=params,
            timeout=timeout,
            allow_redirects=False,
        ) as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MOST_BYTES:
                    raise EngineMismatch(f"{answer.url} answers with more than {MOST_BYTES >> 20} MiB")
            return _Answer(str(answer.url), answer.status, answer.reason or "", answer.content_type, bytes(body))

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._client is not None:
            await self._client.close()

    def _error(self, path: str, answer: _Answer) -> EngineError:
        status, reason = answer.status, _reason(answer)
        says = f"{self.url}{path} answered {status}: {reason}"
        if status in (429, 503):
            return EngineBusy(says)
        if status == 401:
            return RequestRefused(f"{says}; the API key is missing or wrong: set {self._key_env}")
        if status in (403, 405, 501) or (status == 404 and reason == "Not Found"):
            return RouteMissing(says)
        if status == 404:
            return EngineMismatch(f"{says}; GET /v1/models lists what it serves (--served-model-name)")
        if status < 500:
            return RequestRefused(says)
        return EngineError(says)


def _json(answer: _Answer) -> Any:
    try:
        return answer.json()
    except ValueError:
        if answer.kind == "application/json":
            raise EngineMismatch(f"{answer.url} answered with broken JSON: {answer.text[:200]!r}") from None
        return answer.text


def _reason(answer: _Answer) -> str:
    """Return what an error says: vLLM's `error.message`, FastAPI's `detail`, or the text."""
    try:
        data = answer.json()
    except ValueError:
        return answer.text[:300] or answer.reason
    if isinstance(data, dict):
        error = data.get("error")
        data = error.get("message") if isinstance(error, dict) else error or data.get("detail") or data.get("message")
    return str(data)[:300] if data else answer.text[:300] or answer.reason
