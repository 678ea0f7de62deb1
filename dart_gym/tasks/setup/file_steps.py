"""Steps about files: download, upload_file, write_file, open, change_wallpaper."""

import asyncio
from pathlib import Path, PurePosixPath
from typing import Any

from dart_gym.core.errors import TaskError
from dart_gym.tasks.screen.windows import activate, list_windows
from dart_gym.tasks.setup.command_steps import run
from dart_gym.tasks.setup.setup_step import (
    HOME,
    POLL_S,
    StepError,
    Surroundings,
    UnmetError,
    expand_path,
    required_text,
)
from dart_gym.tasks.setup.step_patience import StepLimit

OPEN_TIMEOUT_S = 90.0  # LibreOffice's first start on a busy machine


async def download(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Put files of the web, by way of the cache, on the desktop."""
    for entry in _entries(parameters, "url", "path"):
        try:
            source = await where.downloads.fetch(entry["url"])
            data = await asyncio.to_thread(source.read_bytes)
        except (TaskError, OSError) as error:
            raise StepError(str(error)) from error
        await where.desktop.write_file(await expand_path(where.desktop, entry["path"]), data)


async def upload_file(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Put files of this side on the desktop; only from the directory that the operator named."""
    if where.uploads is None:
        raise StepError("upload_file takes no file of this machine unless DART_GYM_UPLOADS names their directory")
    for entry in _entries(parameters, "local_path", "path"):
        source = (where.uploads / entry["local_path"]).resolve()
        if not source.is_relative_to(where.uploads.resolve()):
            raise StepError(f"{entry['local_path']!r} is not in {where.uploads}")
        if not source.is_file():
            raise StepError(f"there is no file {entry['local_path']!r} in {where.uploads}")
        await where.desktop.write_file(await expand_path(where.desktop, entry["path"]), source.read_bytes())


def _entries(parameters: dict[str, Any], *keys: str) -> list[dict[str, str]]:
    files = parameters["files"]
    if not isinstance(files, list) or not all(isinstance(entry, dict) for entry in files):
        raise StepError(f"'files' must be a list of objects, got {files!r}")
    for entry in files:
        for key in keys:
            required_text(entry, key)
    return files


async def write_file(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Write a text. Not OSWorld's: bundled tasks carry their small files themselves."""
    path, text = parameters["path"], parameters["text"]
    if not isinstance(path, str) or not isinstance(text, str):
        raise StepError("'path' and 'text' must be text")
    await where.desktop.write_file(HOME + path[1:] if path.startswith("~/") else path, text.encode())


async def open_file(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Open a file with its application, or start that, until a window shows the file's name in its title."""
    desktop = where.desktop
    path = await expand_path(desktop, required_text(parameters, "path"))
    is_file = (await run(desktop, ["test", "-e", path], shell=False)).returncode == 0
    if not is_file and "/" in path:
        raise UnmetError(f"there is no {path} on the desktop")
    try:
        await desktop.launch(["xdg-open", path] if is_file else [path])
    except (FileNotFoundError, PermissionError) as error:
        raise UnmetError(f"cannot open {path!r} ({error}); `dart-gym doctor` says which package is missing") from error
    limit = StepLimit(where, OPEN_TIMEOUT_S)
    while True:
        windows = await list_windows(desktop)
        found = next((window for window in windows if shows(window.title, path)), None)
        if found is not None:
            await activate(desktop, found.id)
            return
        if await limit.has_passed():
            shown = ", ".join(repr(window.title) for window in windows) or "none"
            raise UnmetError(f"no window shows {path} after {OPEN_TIMEOUT_S:g} s (windows: {shown})")
        await asyncio.sleep(POLL_S)


def shows(title: str, path: str) -> bool:
    """Return whether a window of this title shows a file (or is of an application of that name). Pure."""
    name = PurePosixPath(path)
    return name.name in title or name.stem in title


async def change_wallpaper(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Set GNOME's background picture."""
    path = await expand_path(where.desktop, required_text(parameters, "path"))
    if (await run(where.desktop, ["test", "-e", path], shell=False)).returncode:
        raise UnmetError(f"there is no {path} on the desktop")
    key = ["org.gnome.desktop.background", "picture-uri", Path(path).as_uri()]
    result = await run(where.desktop, ["gsettings", "set", *key], shell=False, timeout=20.0)
    if result.returncode:
        raise UnmetError(f"gsettings failed: {result.stderr.decode(errors='replace').strip()}")
