"""The HTTP server of OSWorld's virtual machine, for a desktop of this package: stock OSWorld code can drive it.

Every route that OSWorld's controllers and getters use answers as the original does when things go well. What goes
wrong is a status and a message within a deadline, instead of a hang.

Invariants:
    - It listens on a Unix socket that only this user can open, on loopback with a token, or, where a person asked for
      that, openly on loopback. Never on another address.
    - Commands and files are those of the desktop, as its user: nothing is run or read on this side.
    - A web page cannot use it, nor one that asks by a name of its own that leads here (`page_guard`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.osworld_api.api_address import CHROMIUM_PORT, VLC_PORT, APIAddress, APIPolicy
from dart_gym.desktops.osworld_api.api_commands import BadRequest
from dart_gym.desktops.osworld_api.api_routes import APIRoutes
from dart_gym.desktops.osworld_api.port_forwarder import PortForwarder
from dart_gym.utils.page_guard import refusal

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
MAX_UPLOAD = 1 << 30
_GRACE_S = 1.0


class OSWorldAPI:
    """OSWorld's routes over one desktop, until it is closed. An async context manager.

    Args:
        desktop: a started desktop; it must outlive the API. Used from the event loop that opened the API.
        path: the Unix socket to listen on, or None for loopback TCP.
        open_to_all: ask for no token on TCP, and lead local ports to DevTools and VLC.
        port: TCP port, 0 for any free one.
    """

    def __init__(self, desktop: Desktop, *, path: Path | None = None, open_to_all: bool = False, port: int = 0) -> None:
        if path is not None and open_to_all:
            raise ConfigurationError("an API listens on a Unix socket or openly on loopback, not both: choose one")
        self._path = path
        self._open = open_to_all
        self._port = port
        self._token = "" if path is not None or open_to_all else secrets.token_urlsafe(24)
        application = web.Application(middlewares=[self._guard, _explain], client_max_size=MAX_UPLOAD)
        application.add_routes(APIRoutes(desktop).table())
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=_GRACE_S)
        self._forwarder = PortForwarder(desktop)
        self.address = APIAddress("")

    async def __aenter__(self) -> OSWorldAPI:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> APIAddress:
        """Listen, and return where. Raises `OSError` when the address is taken."""
        await self._runner.setup()
        try:
            self.address = await (self._listen_unix(self._path) if self._path is not None else self._listen_tcp())
        except BaseException:
            await self.close()
            raise
        return self.address

    async def _listen_unix(self, path: Path) -> APIAddress:
        site = web.UnixSite(self._runner, str(path))
        await site.start()
        path.chmod(0o600)
        return APIAddress(f"http+unix://{path}")

    async def _listen_tcp(self) -> APIAddress:
        await web.TCPSite(self._runner, LOOPBACK, self._port).start()
        port = int(self._runner.addresses[0][1])
        if not self._open:
            return APIAddress(f"http://{LOOPBACK}:{port}", self._token, port)
        chromium, vlc = [await self._forwarder.forward(number) for number in (CHROMIUM_PORT, VLC_PORT)]
        return APIAddress(f"http://{LOOPBACK}:{port}", "", port, chromium, vlc)

    async def close(self) -> None:
        """Stop listening and end what is still being answered. Idempotent."""
        await self._forwarder.close()
        await self._runner.cleanup()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origins, hosts = request.headers.getall("Origin", []), request.headers.getall("Host", [])
        if reason := refusal(origins, hosts, loopback=self._path is None):
            return web.json_response({"status": "error", "message": reason}, status=403)
        if self._token and not hmac.compare_digest(_shown_token(request).encode(), self._token.encode()):
            message = "this desktop asks for its token: Authorization: Bearer TOKEN, or any user with it as password"
            headers = {"WWW-Authenticate": 'Basic realm="desktop"'}
            return web.json_response({"status": "error", "message": message}, status=401, headers=headers)
        return await handler(request)


async def open_api(desktop: Desktop, policy: APIPolicy) -> OSWorldAPI:
    """Open the OSWorld API of a started desktop; the caller closes it.

    Raises:
        ConfigurationError: if the directory cannot be used.
    """
    api = OSWorldAPI(desktop, path=policy.new_socket(), open_to_all=policy.open_to_all)
    await api.start()
    return api


def _shown_token(request: web.Request) -> str:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what went wrong into OSWorld's way to say it."""
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response({"status": "error", "message": str(error), "error": str(error)}, status=400)
    except (DesktopTimeoutError, TimeoutError) as error:
        return _failure(str(error) or "it was not done within its deadline")
    except (DesktopError, OSError) as error:
        log.info("%s %s: %s", request.method, request.path, error)
        return _failure(f"{type(error).__name__}: {error}")


def _failure(message: str) -> web.Response:
    return web.json_response({"status": "error", "message": message, "error": message}, status=500)
