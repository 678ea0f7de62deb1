"""What one desktop can do (`base.Desktop`), and the kinds of desktops there are."""

from __future__ import annotations

import difflib

from dart_gym.desktops.base import Desktop, DesktopSpec
from dart_gym.errors import ConfigurationError

KINDS = ("xvfb", "fake")


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
    near = difflib.get_close_matches(spec.kind, KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(KINDS)}"
    raise ConfigurationError(f"unknown kind of desktop {spec.kind!r}{hint}")
