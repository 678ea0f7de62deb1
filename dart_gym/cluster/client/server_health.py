"""Health checks of a server on a Unix socket, for its parent: a process that hangs never exits."""

import socket
from enum import Enum
from pathlib import Path

PATIENCE_S = 10.0
PERIOD_S = 5.0
MOST_SILENCES = 6
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Health(Enum):
    """What one look at a server found."""

    ANSWERS = "answers"
    ABSENT = "absent"
    SILENT = "silent"


def look_at(path: Path, patience_s: float = PATIENCE_S) -> Health:
    """Ask a server for its health. Blocks, at most `patience_s` for each step."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return Health.ABSENT
        except OSError:  # its queue of connections is full
            return Health.SILENT
        try:
            connection.sendall(_REQUEST)
            return Health.ANSWERS if connection.recv(64).startswith(b"HTTP/") else Health.SILENT
        except OSError:
            return Health.SILENT


class Patience:
    """Counts looks at one server, and tells when it is to be given up. Pure.

    A server that has not answered yet is starting: nobody listens then. Looks are counted and not seconds, so that a
    machine that slept costs no server.
    """

    def __init__(self, most_silences: int = MOST_SILENCES) -> None:
        self._left = self._most = most_silences
        self._seen = False

    def is_over(self, found: Health) -> bool:
        """Take in a look; whether it was the last that is given."""
        if found is Health.ANSWERS:
            self._seen, self._left = True, self._most
        elif self._seen or found is Health.SILENT:
            self._left -= 1
        return self._left <= 0
