"""Middleware of a vLLM server that other nodes reach: no route answers without the bearer token in `VLLM_API_KEY`.

vLLM's own key guards what is below /v1, and not the routes that steer it.
"""

import hmac
import os
from typing import Any


class Guard:
    """An ASGI application around another one.

    Args:
        app: what answers requests that show the token.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one connection."""
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"the bearer token is missing or wrong\n"})
        else:
            await send({"type": "websocket.close", "code": 1008})
