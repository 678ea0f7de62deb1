"""The profile "browser": one Chromium in kiosk mode with DevTools, kept over episodes."""

import os
import shutil
from pathlib import Path

from dart_gym.core.errors import MissingDependencyError
from dart_gym.desktops.base.desktop import DesktopSpec

DEVTOOLS_PORT = 1337
LOG = "chromium"

FLAGS = (
    "--no-sandbox",  # it runs in a sandbox of its own already
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--disable-session-crashed-bubble",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--kiosk",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--disable-partial-raster",  # else the pixels of round corners depend on what was shown before
    "--window-position=0,0",
)


BROWSER_VARIABLE = "DART_GYM_CHROMIUM"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_program() -> str:
    """Path of a Chromium, by `DART_GYM_CHROMIUM` or one of `BROWSERS`. Raises `MissingDependencyError`."""
    named = os.environ.get(BROWSER_VARIABLE)
    if named:
        path = shutil.which(named)
        if path is None:
            raise MissingDependencyError(f"{BROWSER_VARIABLE}={named} is no program; next step: correct or unset it")
        return path
    for name in BROWSERS:
        path = shutil.which(name)
        if path and not _is_snap(Path(path)):
            return path
    raise MissingDependencyError(
        "the browser profile needs Chromium; next step: apt-get install chromium (Ubuntu's is a snap, which no sandbox "
        f"can start: take Google Chrome's .deb, or let {BROWSER_VARIABLE} name another)"
    )


def _is_snap(path: Path) -> bool:
    """Return whether a program is a snap, or Ubuntu's script that starts one: they cannot start in a sandbox."""
    if "snap" in path.resolve().parts:
        return True
    with path.open("rb") as file:
        start = file.read(4096)
    return start.startswith(b"#!") and b"/snap/bin/" in start


def browser_command(spec: DesktopSpec, port: int, user_data_dir: str) -> list[str]:
    """The command line of the kiosk; `port` is that of DevTools on the desktop's loopback."""
    return [
        browser_program(),
        *FLAGS,
        f"--window-size={spec.width},{spec.drawn_height}",
        f"--remote-debugging-port={port}",
        f"--user-data-dir={user_data_dir}",
        "about:blank",
    ]
