"""Where a machine with OSWorld's server is: a URL that an operator gave, or Unix sockets that its provider made.

Invariants:
    - Addresses come from operators and providers, never from a task.
    - `shown` never holds a token.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

import httpx

from dart_gym.core.errors import ConfigurationError

PORT_LINE = "{port}\n"
"""What a client of the socket for ports says first; from then on it talks to that port of the machine's loopback."""


def check_url(url: object) -> None:
    """Raise `ConfigurationError` where a text cannot be the address of a machine with OSWorld's server."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
        raise ConfigurationError(f"osworld_url must be like http://host:5000, got {url!r}")


@dataclass(frozen=True, slots=True)
class MachineAddress:
    """How to reach a machine.

    Attributes:
        host: name of the machine whose ports are used; "" where they are reached by `ports_socket`.
        ports_socket: Unix socket that leads to any port of the machine's loopback (see `PORT_LINE`).
    """

    shown: str
    base: str
    host: str = ""
    ports: Mapping[int, int] = field(default_factory=dict)
    socket: Path | None = None
    ports_socket: Path | None = None

    def client(self) -> httpx.AsyncClient:
        """A client of OSWorld's routes."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket)) if self.socket is not None else None
        return httpx.AsyncClient(base_url=self.base, trust_env=False, transport=transport)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port of the machine. Raises `OSError`."""
        if self.ports_socket is None:
            return await asyncio.open_connection(self.host, self.ports.get(port, port))
        reader, writer = await asyncio.open_unix_connection(self.ports_socket)
        writer.write(PORT_LINE.format(port=port).encode())
        return reader, writer


def parse_machine_url(url: str) -> MachineAddress:
    """The address of `http://[user:token@]host:5000[?9222=30022&8080=30080]`. Raises `ConfigurationError`."""
    check_url(url)
    parts = urlsplit(url)
    host = str(parts.hostname)
    try:
        number = parts.port or 80
        ports = {int(port): int(to[0]) for port, to in parse_qs(parts.query).items() if port.isdigit()}
    except ValueError as error:
        raise ConfigurationError(f"the address of {host} has a port that is no number: {error}") from None
    return MachineAddress(f"{host}:{number}", urlunsplit((parts.scheme, parts.netloc, "", "", "")), host, ports)
