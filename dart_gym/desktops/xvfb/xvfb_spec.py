"""Check which specs an embedded desktop can meet. Needs no X connection."""

from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import DesktopSpec

PROFILES = ("bare", "browser", "osworld")
SANDBOXES = ("bwrap", "none")
LEAST_PIXELS = 32
MOST_PIXELS = 8192
MOST_MARGIN = 64


def check_spec(spec: DesktopSpec) -> None:
    """Check a spec.

    Raises:
        ConfigurationError: if the profile or sandbox is unknown, or the size is impossible.
    """
    if spec.profile not in PROFILES:
        raise ConfigurationError(f"unknown profile {spec.profile!r}; choose one of {', '.join(PROFILES)}")
    if spec.sandbox not in SANDBOXES:
        raise ConfigurationError(f"unknown sandbox {spec.sandbox!r}; choose one of {', '.join(SANDBOXES)}")
    if spec.sites and spec.sandbox != "bwrap":
        raise ConfigurationError("sites need a desktop in a sandbox: without one they have no names of their own")
    if spec.panel and spec.profile != "osworld":
        raise ConfigurationError(
            f"a panel needs the profile osworld, whose applications it shows, not {spec.profile!r}"
        )
    sides = all(LEAST_PIXELS <= side <= MOST_PIXELS for side in (spec.width, spec.height))
    if not (sides and 0 <= spec.margin <= MOST_MARGIN):
        raise ConfigurationError(
            f"the screen size {spec.width}x{spec.height} is not within {LEAST_PIXELS} to {MOST_PIXELS} pixels, "
            f"or its margin {spec.margin} not within 0 to {MOST_MARGIN}"
        )
