"""What a killed server left behind is found and removed when the next one starts.

Desktops of dead owners with their directories, processes and displays, sockets of OSWorld APIs that nobody listens on,
and whatever providers know of (containers): see `cleaners`.

Invariants:
    - Nothing of a living server is touched: directories name their owner, and on its sockets somebody answers.
    - A part that cannot be cleaned is logged and left to the next start: it keeps no server from serving.
"""

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from dart_gym.core.errors import DartGymError
from dart_gym.desktops.sandbox.runtime_directory import clean_leftovers, is_deserted
from dart_gym.utils.processes import start_time

log = logging.getLogger(__name__)

Cleaner = Callable[[], Iterable[str | Path]]
"""Removes what dead servers left behind, and names it."""

_API_SOCKET = re.compile(r"(\d+)-\d+\.sock")


def clean_up(api_directories: Iterable[Path] = (), cleaners: Iterable[Cleaner] = ()) -> list[str]:
    """Remove what killed servers left behind, and name it; providers' `cleaners` do so for what lies elsewhere."""
    parts: list[Cleaner] = [clean_leftovers, *(partial(_api_sockets, path) for path in api_directories), *cleaners]
    removed: list[str] = []
    for part in parts:
        try:
            removed += map(str, part())
        except (DartGymError, OSError) as error:
            log.warning("cannot remove all that killed servers left behind: %s", error)
    return removed


def _api_sockets(directory: Path) -> list[str]:
    """Remove sockets of OSWorld APIs that nobody listens on."""
    removed = []
    for path in directory.glob("*.sock"):
        name = _API_SOCKET.fullmatch(path.name)
        if name and start_time(int(name[1])) is None and is_deserted(path):
            path.unlink(missing_ok=True)
            removed.append(str(path))
    return removed
