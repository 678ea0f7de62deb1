"""Desktops by the kind that their spec names."""

from __future__ import annotations

import difflib

from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import Desktop, DesktopSpec

KINDS = ("xvfb", "fake", "osworld")


def make_desktop(spec: DesktopSpec) -> Desktop:
    """A desktop, not started yet.

    Raises:
        ConfigurationError: unknown kind, or a spec that its kind cannot meet.
    """
    if spec.kind == "xvfb":
        from dart_gym.desktops.xvfb.xvfb_desktop import XvfbDesktop

        return XvfbDesktop(spec)
    if spec.kind == "fake":
        from dart_gym.desktops.fake_desktop import FakeDesktop

        return FakeDesktop(spec)
    if spec.kind == "osworld":
        from dart_gym.desktops.osworld_vm.osworld_desktop import OSWorldDesktop

        return OSWorldDesktop(spec)
    near = difflib.get_close_matches(spec.kind, KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(KINDS)}"
    raise ConfigurationError(f"unknown kind of desktop {spec.kind!r}{hint}")
