"""Desktops by the kind that their spec names."""

from collections.abc import Callable

from dart_gym.desktops.base.desktop import Desktop, DesktopSpec
from dart_gym.utils.plugins import Registry, called_with

DESKTOPS: Registry[Callable[[DesktopSpec], Desktop]] = Registry(
    "kind of desktop",
    "dart_gui.desktops",
    {
        "xvfb": "dart_gym.desktops.keeper.kept_desktop:KeptDesktop",
        "fake": "dart_gym.desktops.fake_desktop:FakeDesktop",
        "osworld": "dart_gym.desktops.osworld_vm.osworld_desktop:OSWorldDesktop",
    },
    (called_with("spec"),),
)


def make_desktop(spec: DesktopSpec) -> Desktop:
    """Make a desktop that is not started yet.

    Raises:
        ConfigurationError: if the kind is unknown, or cannot meet the spec.
    """
    return DESKTOPS.get(spec.kind)(spec)
