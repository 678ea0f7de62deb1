"""The profile "browser": one Chromium in kiosk mode with DevTools, kept over episodes."""

from __future__ import annotations

import shutil

from dart_gym.desktops.base import DesktopSpec
from dart_gym.errors import MissingDependencyError

DEVTOOLS_PORT = 1337
LOG = "chromium"

_FLAGS = (
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
    "--disable-frame-rate-limit",  # frames as soon as drawn, not 60 a second: a reset takes 4-10 ms instead of 16-33
    "--disable-gpu-vsync",
    "--disable-partial-raster",  # else the pixels of round corners depend on what was shown before
    "--window-position=0,0",
)


def browser_program() -> str:
    """The installed Chromium.

    Raises:
        MissingDependencyError: there is none.
    """
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if shutil.which(name):
            return name
    raise MissingDependencyError("the browser profile needs Chromium; next step: apt-get install chromium")


def browser_command(spec: DesktopSpec, port: int, user_data_dir: str) -> list[str]:
    """The command line of the kiosk; `port` is that of DevTools on the desktop's loopback."""
    return [
        browser_program(),
        *_FLAGS,
        f"--window-size={spec.width},{spec.height}",
        f"--remote-debugging-port={port}",
        f"--user-data-dir={user_data_dir}",
        "about:blank",
    ]
