"""Fixtures of the provider tests: machines with OSWorld's HTTP face, with a drawn desktop behind it."""

from __future__ import annotations

import pytest

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.osworld_api.api_server import OSWorldFace

SIZE = {"width": 320, "height": 240}


@pytest.fixture
def osworld_spec() -> DesktopSpec:
    """What a task of OSWorld asks for, on a small screen."""
    return DesktopSpec(profile="osworld", **SIZE)


@pytest.fixture
async def start_machine():
    """Starts a machine with OSWorld's routes; returns its face and the desktop behind it."""
    faces: list[OSWorldFace] = []

    async def start() -> tuple[OSWorldFace, FakeDesktop]:
        desktop = FakeDesktop(DesktopSpec(kind="fake", **SIZE))
        await desktop.start()
        face = OSWorldFace(desktop, open_to_all=True)
        await face.start()
        faces.append(face)
        return face, desktop

    yield start
    for face in faces:
        await face.close()
