"""What the cluster's port answers to plain HTTP: health, metrics, and the page that shows the desktops. Read-only.

    /healthz                       200 "ok", or 503 "draining": for load balancers; needs no token
    /metrics                       Prometheus
    /watch                         the page; it holds no secrets, so it needs no token
    /watch/state                   JSON: every desktop, its task, phase, last actions
    /watch/frame/<slot>?size=...   JPEG of the last frame, "small" or "large", with an ETag

Invariants:
    - Nothing here changes anything, and nothing here captures a screen or blocks the event loop.
    - The token is taken from the Authorization header only: never from a URL, which logs and histories keep.
    - With several tokens each sees its own desktops, or all with `watch: all`.
    - No page of the web is answered, nor one that asks by a name of its own that leads here (`page_guard`).
"""

import json
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from dart_gym.cluster.pool.desktop_pool import Pool
from dart_gym.cluster.server.access_tokens import Principal
from dart_gym.cluster.server.live_view import WIDTHS, LiveViews
from dart_gym.cluster.server.server_metrics import Metrics
from dart_gym.cluster.server.watch_page import HEADERS, page

FRAME_PATH = "/watch/frame/"
ROUTES = "/healthz, /metrics and /watch"
TEXT = "text/plain; charset=utf-8"


class Served(Protocol):
    """What the routes need of a server."""

    metrics: Metrics
    live_views: LiveViews
    pool: Pool

    @property
    def draining(self) -> bool:
        """Return whether it takes no new sessions."""

    def status(self, principal: Principal) -> dict[str, Any]:
        """Plain values about every desktop, as far as somebody may know."""

    def authenticate(self, headers: Headers) -> Principal | None:
        """Return who sent a request, or None if the sender may not use this server."""

    def refuses(self, headers: Headers) -> str:
        """Why a request is not meant for this server; "" where it is."""


class HttpRoutes:
    """Answers plain requests for a server."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._routes: dict[str, Callable[[Principal], Response]] = {
            "/metrics": self._metrics,
            "/watch/state": self._state,
        }

    async def answer(self, request: Request) -> Response:
        """The response to a request that asks for no websocket."""
        method = getattr(request, "method", "GET")  # before websockets 17 others never come this far
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", Allow="GET, HEAD")
        response = await self._find(request)
        if method == "HEAD":
            response.body = b""  # its Content-Length stays
        return response

    async def _find(self, request: Request) -> Response:
        path, _, query = request.path.partition("?")
        if path == "/healthz":
            if self._server.draining:
                return _plain(HTTPStatus.SERVICE_UNAVAILABLE, "draining\n")
            return _plain(HTTPStatus.OK, "ok\n")
        if reason := self._server.refuses(request.headers):
            return _plain(HTTPStatus.FORBIDDEN, f"{reason}\n")
        if path == "/watch":
            html, policy = page("live")
            return response(HTTPStatus.OK, html, "text/html; charset=utf-8", **{"Content-Security-Policy": policy})
        if path not in self._routes and not path.startswith(FRAME_PATH):
            return _plain(HTTPStatus.NOT_FOUND, f"here are {ROUTES}; sessions are websockets\n")
        principal = self._server.authenticate(request.headers)
        if principal is None:
            challenge = {"WWW-Authenticate": "Bearer"}
            return _plain(HTTPStatus.UNAUTHORIZED, "this cluster needs a bearer token\n", **challenge)
        if path in self._routes:
            return self._routes[path](principal)
        slot, size = path.removeprefix(FRAME_PATH), parse_qs(query).get("size", ["small"])[-1]
        if slot in self._hidden(principal):
            return _plain(HTTPStatus.FORBIDDEN, "this desktop is another token's\n")
        return await self._frame(slot, size, request.headers)

    def _hidden(self, principal: Principal) -> set[str]:
        """Return the names of the desktops that a user may not see."""
        if principal.watches_all:
            return set()
        return {slot.name for slot in self._server.pool.slots if slot.owner != principal.name}

    def _metrics(self, principal: Principal) -> Response:
        body = self._server.metrics.text(self._server.status(principal))
        return response(HTTPStatus.OK, body, "text/plain; version=0.0.4; charset=utf-8")

    def _state(self, principal: Principal) -> Response:
        status = self._server.status(principal)
        views = self._server.live_views
        hidden = self._hidden(principal)
        for desktop in status["desktops"]:
            desktop["private"] = desktop["slot"] in hidden
            desktop.update(views.describe("" if desktop["private"] else desktop["slot"]))
        return response(HTTPStatus.OK, json.dumps(status).encode(), "application/json")

    async def _frame(self, slot: str, size: str, headers: Headers) -> Response:
        if size not in WIDTHS:
            return _plain(HTTPStatus.BAD_REQUEST, f"size is one of {', '.join(WIDTHS)}\n")
        views = self._server.live_views
        tag = views.tag(slot, size)
        caching = {"ETag": tag, "Cache-Control": "private, no-cache"}
        if tag and tag in headers.get("If-None-Match", ""):
            return response(HTTPStatus.NOT_MODIFIED, b"", "image/jpeg", **caching)
        data = await views.jpeg(slot, size)
        if data is None:
            return _plain(HTTPStatus.NOT_FOUND, f"desktop {slot[:20]!r} shows nothing now\n")
        return response(HTTPStatus.OK, data, "image/jpeg", **caching)


def is_upgrade(headers: Headers) -> bool:
    """Return whether a request asks for a websocket. Pure."""
    return any(value.strip().lower() == "websocket" for value in headers.get_all("Upgrade"))


def response(status: HTTPStatus, body: bytes, content_type: str, **headers: str) -> Response:
    """A whole response; the connection closes after it."""
    fields = {
        "Date": formatdate(usegmt=True),
        "Connection": "close",
        "Content-Length": str(len(body)),
        "Content-Type": content_type,
        **HEADERS,
        **headers,
    }
    return Response(status.value, status.phrase, Headers(fields), body)


def _plain(status: HTTPStatus, text: str, **headers: str) -> Response:
    return response(status, text.encode(), TEXT, **headers)
