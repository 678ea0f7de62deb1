"""Where a cluster listens: `ws+unix:///path.sock` (one machine), `ws://host:port`, and for clients `wss://host:port`."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from dart_gym.core.errors import ConfigurationError

DEFAULT_PORT = 8765
MAX_SOCKET_PATH = 107  # bytes, sun_path of Linux without its final zero


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL: `path` is set for a Unix socket, else `host` and `port` (0 lets the server choose)."""

    url: str
    host: str = ""
    port: int = DEFAULT_PORT
    path: str = ""
    tls: bool = False

    @property
    def is_unix(self) -> bool:
        """Return whether it is a Unix socket."""
        return bool(self.path)

    @property
    def is_local(self) -> bool:
        """Return whether only programs of this machine can reach it."""
        if self.is_unix or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(url: str) -> Address:
    """Parse a URL.

    Raises:
        ConfigurationError: if the URL has none of the supported forms; the message lists them.
    """
    forms = f"use ws+unix:///path/to.sock or ws://host:{DEFAULT_PORT}"
    try:
        parts = urlsplit(url)
        port = parts.port if parts.port is not None else DEFAULT_PORT
    except ValueError as error:
        raise ConfigurationError(f"bad cluster URL {url!r}: {error}; {forms}") from None
    if parts.scheme == "ws+unix":
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
            raise ConfigurationError(f"bad cluster URL {url!r}: a socket's path is absolute (three slashes); {forms}")
        if len(parts.path.encode()) > MAX_SOCKET_PATH:
            raise ConfigurationError(f"the path in {url!r} is longer than {MAX_SOCKET_PATH} bytes: take a shorter one")
        return Address(url, path=parts.path)
    if parts.scheme in ("ws", "wss") and parts.hostname and parts.path in ("", "/"):
        return Address(url, host=parts.hostname, port=port, tls=parts.scheme == "wss")
    raise ConfigurationError(f"bad cluster URL {url!r}; {forms}")
