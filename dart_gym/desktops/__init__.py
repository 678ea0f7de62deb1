"""What one desktop can do (`base.Desktop`), and the kinds of desktops there are."""

from __future__ import annotations

import difflib
from urllib.parse import urlsplit

from dart_gym.desktops.base import Desktop, DesktopSpec
from dart_gym.errors import ConfigurationError

KINDS = ("xvfb", "fake", "osworld")


def check_url(url: object) -> None:
    """Raise `ConfigurationError` where a text cannot be the address of a machine with OSWorld's server."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
        raise ConfigurationError(f"osworld_url must be like http://host:5000, got {url!r}")


def make_desktop(spec: DesktopSpec) -> Desktop:
    """A desktop, not started yet.

    Raises:
        ConfigurationError: unknown kind, or a spec that its kind cannot meet.
    """
    if spec.kind == "xvfb":
        from dart_gym.desktops.xvfb import XvfbDesktop

        return XvfbDesktop(spec)
    if spec.kind == "fake":
        from dart_gym.desktops.fake import FakeDesktop

        return FakeDesktop(spec)
    if spec.kind == "osworld":
        from dart_gym.desktops.osworld import OSWorldDesktop

        return OSWorldDesktop(spec)
    near = difflib.get_close_matches(spec.kind, KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(KINDS)}"
    raise ConfigurationError(f"unknown kind of desktop {spec.kind!r}{hint}")
