"""Where the OSWorld API of a desktop listens, and which desktops get one."""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from dart_gym.core.errors import ConfigurationError

CHROMIUM_PORT, VLC_PORT = 9222, 8080  # of the desktop, where OSWorld's getters expect DevTools and VLC's web interface
_MAX_SOCKET_PATH = 107
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class APIAddress:
    """Where an API listens.

    Attributes:
        url: "http://127.0.0.1:<port>", or "http+unix://<path>".
        token: what a client must show: as a bearer token, or as the password of basic authentication (so that stock
            clients, which take a host name, can be given "any:<token>@127.0.0.1"). "" where none is asked for.
        server_port: TCP port; 0 on a Unix socket.
        chromium_port: TCP port on this side that leads to port 9222 of the desktop; 0 unless open.
        vlc_port: TCP port on this side that leads to port 8080 of the desktop; 0 unless open.
    """

    url: str
    token: str = ""
    server_port: int = 0
    chromium_port: int = 0
    vlc_port: int = 0

    def describe(self) -> dict[str, object]:
        """The same as a dict for `info`, without what does not apply."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class APIPolicy:
    """How the desktops of a server offer the OSWorld API.

    Attributes:
        directory: where their Unix sockets lie; None for TCP on loopback.
        open_to_all: listen on TCP without a token: for stock clients, on a machine whose users are all trusted.
    """

    directory: Path | None = None
    open_to_all: bool = False

    def new_socket(self) -> Path | None:
        """Return a path for one more desktop's socket, or None for TCP.

        Raises:
            ConfigurationError: if the directory cannot be used.
        """
        if self.directory is None:
            return None
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.directory / f"{os.getpid()}-{next(_numbers)}.sock"
        if len(str(path)) > _MAX_SOCKET_PATH:
            raise ConfigurationError(f"the path {path} is too long for a socket; choose a shorter directory")
        return path
