"""The token of a server on loopback to which nobody gave one: a file that this user's clients find without being told.

A port of loopback is open to every user of the machine, a file in one's runtime directory is not.

Invariants:
    - Each start makes a new token, so that no earlier owner of the port knows it.
    - The file is there, whole, before the server says that it listens.
"""

import contextlib
import os
import secrets
from pathlib import Path

from dart_gym.cluster.wire.cluster_address import Address
from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_gym.desktops.sandbox.runtime_directory import runtime_dir
from dart_gym.utils.durable_files import make_directories, write_file


class LocalToken:
    """A token for a server that is about to listen on loopback."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(32)
        self._file: Path | None = None

    def publish(self, port: int) -> None:
        """Write the token where this user's clients look for it.

        Raises:
            ConfigurationError: if the file cannot be written.
        """
        try:
            path = _file(port)
            make_directories(path.parent)
            write_file(path, self.text, mode=0o600)
        except (OSError, DesktopError) as error:
            raise ConfigurationError(
                f"cannot leave this server's token where its clients find it ({error}); next step: set XDG_RUNTIME_DIR "
                "to a directory of yours, or name a token of your own with --token-env"
            ) from error
        self._file = path

    def withdraw(self) -> None:
        """Remove the file, unless another server has its own there by now. Idempotent."""
        path, self._file = self._file, None
        if path is not None:
            with contextlib.suppress(OSError):
                if path.read_text() == self.text:
                    path.unlink()


def find_local_token(address: Address) -> str | None:
    """The token that this user's server left for a loopback address; None without one."""
    if address.is_unix or not address.is_local:
        return None
    try:
        path = _file(address.port, make=False)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="ascii") as file:
            return file.read(200)
    except (OSError, ValueError, DesktopError):
        return None


def _file(port: int, *, make: bool = True) -> Path:
    return runtime_dir(make=make) / "tokens" / str(port)
