"""HTTPServer: a server that speaks JSON over HTTP, as a client sees it: what can go wrong becomes an `EngineError`."""

from typing import Any

import httpx

from dart_agent.engines.base.engine import EngineBusy, EngineError, EngineMismatch, EngineTimeout, RequestRefused

JSON = {"Content-Type": "application/json"}


class RouteMissing(EngineMismatch):
    """The server has no such route, or will not serve it."""


class HTTPServer:
    """A server that speaks JSON over HTTP; what can go wrong becomes a type of `EngineError`."""

    def __init__(self, url: str, *, key: str, key_env: str) -> None:
        """Remember where it is; the first request connects. A message about a wrong key names `key_env`."""
        self.url, self._key_env = url.rstrip("/"), key_env
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Every request says its own timeout; a pool without limit never makes one wait behind others.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(headers=headers, limits=limits, trust_env=False)

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
        try:
            answer = await self._client.request(
                method,
                f"{self.url}{path}",
                json=json,
                content=content,
                headers=JSON if content else None,
                params=params,
                timeout=max(0.001, timeout_s),
            )
        except httpx.TimeoutException as error:
            raise EngineTimeout(
                f"{self.url}{path} did not answer within {timeout_s:.1f} s ({type(error).__name__}): is it overloaded, "
                "or is the time limit too short for this model?"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineError(f"no server at {self.url} ({type(error).__name__}: {error}); is it running?") from error
        if answer.is_success:
            return _json(answer) if answer.content else None
        raise self._error(path, answer)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._client.aclose()

    def _error(self, path: str, answer: httpx.Response) -> EngineError:
        status, reason = answer.status_code, _reason(answer)
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


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        if answer.headers.get("content-type", "").startswith("application/json"):
            raise EngineMismatch(f"{answer.url} answered with broken JSON: {answer.text[:200]!r}") from None
        return answer.text


def _reason(answer: httpx.Response) -> str:
    """What an error says: vLLM's `error.message`, FastAPI's `detail`, or the text."""
    try:
        data = answer.json()
    except ValueError:
        return answer.text[:300] or answer.reason_phrase
    if isinstance(data, dict):
        error = data.get("error")
        data = error.get("message") if isinstance(error, dict) else error or data.get("detail") or data.get("message")
    return str(data)[:300]
