"""The files of the MiniWoB++ pages that this suite shows, out of the PyPI package `miniwob`.

Source: Shi et al. 2017, Liu et al. 2018; pages maintained by the Farama Foundation (MIT licence).
"""

import functools
import importlib.metadata
import importlib.resources
import re
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from dart_gym.core.errors import MissingDependencyError

_LINK = re.compile(rb"""(?:src|href)=["']([^"'#?]+\.(?:js|css))["']|url\(["']?([^"')#?]+\.(?:png|gif))["']?\)""")

IMAGES = (".png", ".gif")


def version() -> str:
    """Version of the package; part of what identifies a score."""
    return importlib.metadata.version("miniwob")


def page_path(page: str) -> str:
    """Path of a page below the root of the files, such as "miniwob/click-test.html"."""
    return f"miniwob/{page}.html"


@functools.cache
def read(path: str) -> bytes:
    """Content of one file. Raises `MissingDependencyError` when the package lacks it."""
    file = _root()
    for part in PurePosixPath(path).parts:
        file = file / part
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise MissingDependencyError(
            f"the package miniwob {version()} lacks {path}; next step: pip install --force-reinstall 'miniwob>=1.0'"
        ) from None


@functools.cache
def files_of(page: str) -> tuple[str, ...]:
    """Paths of a page and of all that it loads: scripts, styles, images of the styles."""
    found: dict[str, None] = {}
    waiting = [page_path(page)]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        if path.endswith((".html", ".css")):
            for match in _LINK.finditer(read(path)):
                link = (match[1] or match[2]).decode()
                waiting.append(_resolve(PurePosixPath(path).parent, link))
    return tuple(found)


def _resolve(folder: PurePosixPath, link: str) -> str:
    parts: list[str] = list(folder.parts)
    for part in PurePosixPath(link).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _root() -> Traversable:
    try:
        return importlib.resources.files("miniwob") / "html"
    except ModuleNotFoundError:
        raise MissingDependencyError("the package miniwob is missing; next step: pip install 'miniwob>=1.0'") from None
