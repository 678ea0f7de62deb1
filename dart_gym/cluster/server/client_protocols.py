"""Protocols of other projects on the cluster's port, each at paths of its own. Installed packages add them.

A protocol takes the connection of a client and gives one that the server uses as it uses any other: what the client
says comes out as the cluster's own frames, a hello first, and frames that are sent become what the client expects. So
sessions, quotas, limits and counters are the same for all clients.

Invariants:
    - Protocols are imported when a server is made: one that cannot be used refuses the start, not a client.
    - A path belongs to one protocol.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, cast

from websockets.asyncio.server import ServerConnection

from dart_gym.core.errors import PluginError
from dart_gym.utils.plugins import Registry, called_with, has


class ClientProtocol(Protocol):
    """A connection as the server sees it, with a client of another protocol at its other end.

    It has all that the server uses of a `ServerConnection`; `paths` are those at which clients ask for it.
    """

    paths: ClassVar[tuple[str, ...]]

    def __init__(self, connection: ServerConnection) -> None: ...

    async def recv(self) -> bytes:
        """The next frame of the client: a hello, then requests."""

    async def send(self, message: Any) -> None:
        """Send what a frame of the server becomes."""


CLIENT_PROTOCOLS: Registry[type[ClientProtocol]] = Registry(
    "client protocol", "dart_gui.client_protocols", {}, (called_with("connection"), has("paths", "recv", "send"))
)


def protocols_by_path() -> dict[str, type[ClientProtocol]]:
    """Return the protocols of installed packages by their paths.

    Raises:
        PluginError: if a protocol cannot be used, or two have the same path.
    """
    found: dict[str, type[ClientProtocol]] = {}
    for name in CLIENT_PROTOCOLS.names():
        protocol = CLIENT_PROTOCOLS.get(name)
        for path in protocol.paths:
            if path in found:
                raise PluginError(f"two client protocols have the path {path}, {name!r} is one: uninstall one of them")
            found[path] = protocol
    return found


def adapt(connection: ServerConnection, protocols: Mapping[str, type[ClientProtocol]]) -> ServerConnection:
    """The connection, seen through the protocol whose path its client asked for; as it is at every other path."""
    request = connection.request
    protocol = None if request is None else protocols.get(request.path.partition("?")[0])
    return connection if protocol is None else cast(ServerConnection, protocol(connection))
