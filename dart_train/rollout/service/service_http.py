"""The HTTP pages of the rollout service: `/metrics` for Prometheus, `/healthz`, `/status` as JSON. Read-only.

Invariants:
    - It listens on a Unix socket or on loopback unless another address is given. The pages need no key, so requests
      from web pages are refused (`page_guard`).
    - While a dependency is away, `/healthz` answers with 503 and names it; the service itself goes on.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.core.errors import AddressError, ConfigurationError
from dart_gym.utils.page_guard import refusal
from dart_train.rollout.service.exposition import prometheus_text

_log = logging.getLogger(__name__)
UNIX = "unix:"
FORMS = 'use "127.0.0.1:9465", "unix:/path/to.sock", or "" for none'
LOOPBACK = "127.0.0.1"


def parse_listen(listen: str) -> tuple[str, int] | Path | None:
    """Return host and port, or the path of a Unix socket, or None for "".

    Raises:
        ConfigurationError: if the address is not one of these.
    """
    if not listen:
        return None
    if listen.startswith(UNIX):
        path = Path(listen.removeprefix(UNIX))
        if not path.is_absolute():
            raise ConfigurationError(f"rollout.metrics_listen {listen!r}: a socket's path is absolute; {FORMS}")
        return path
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"rollout.metrics_listen {listen!r} has no port; {FORMS}")
    return host.strip("[]") or LOOPBACK, int(port)


@contextlib.asynccontextmanager
async def serving(listen: str, figures: Callable[[], dict[str, Any] | None]) -> AsyncIterator[str]:
    """Serve at a `parse_listen` address in the block; yield the address, or "" for no address.

    Raises:
        AddressError: if the address is taken.
    """
    address = parse_listen(listen)
    if address is None:
        yield ""
        return
    loopback = not isinstance(address, Path) and parse_address(f"ws://{_written(address[0])}:1").is_local
    app = web.Application(middlewares=[_guard(loopback)])
    for route, handler in (("/metrics", _metrics), ("/healthz", _health), ("/status", web.json_response)):
        app.router.add_get(route, _with(figures, handler))
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        yield await _listen(runner, address)
    finally:
        await runner.cleanup()
        if isinstance(address, Path):
            address.unlink(missing_ok=True)


async def _listen(runner: web.AppRunner, address: tuple[str, int] | Path) -> str:
    try:
        if isinstance(address, Path):
            address.unlink(missing_ok=True)  # left by a service that was killed
            await web.UnixSite(runner, str(address)).start()
            return f"{UNIX}{address}"
        await web.TCPSite(runner, *address).start()
    except OSError as error:
        raise AddressError(f"rollout.metrics_listen: cannot listen on {address} ({error}); {FORMS}") from error
    host, port = runner.addresses[0][:2]
    return f"{host}:{port}"


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _guard(loopback: bool) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        origins, hosts = request.headers.getall("Origin", []), request.headers.getall("Host", [])
        if reason := refusal(origins, hosts, loopback=loopback):
            return web.Response(status=403, text=f"{reason}\n")
        return await handler(request)

    return guard


def _with(figures: Callable[[], dict[str, Any] | None], answer: Callable[[dict[str, Any]], web.Response]) -> Any:
    async def handle(request: web.Request) -> web.Response:
        now = figures()
        return web.json_response({"starting": True}, status=503) if now is None else answer(now)

    return handle


def _metrics(figures: dict[str, Any]) -> web.Response:
    return web.Response(body=prometheus_text(figures), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health(figures: dict[str, Any]) -> web.Response:
    unavailable = figures["unavailable"]
    return web.json_response({"ok": not unavailable, "unavailable": unavailable}, status=503 if unavailable else 200)
