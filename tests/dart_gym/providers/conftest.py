"""Fixtures of the provider tests: machines with the OSWorld API, with a drawn desktop behind it."""

from __future__ import annotations

import pytest

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI

SIZE = {"width": 320, "height": 240}


@pytest.fixture
def osworld_spec() -> DesktopSpec:
    """What a task of OSWorld asks for, on a small screen."""
    return DesktopSpec(profile="osworld", **SIZE)


@pytest.fixture
async def start_machine():
    """Starts a machine with OSWorld's routes; returns its api and the desktop behind it."""
    apis: list[OSWorldAPI] = []

    async def start() -> tuple[OSWorldAPI, FakeDesktop]:
        desktop = FakeDesktop(DesktopSpec(kind="fake", **SIZE))
        await desktop.start()
        api = OSWorldAPI(desktop, open_to_all=True)
        await api.start()
        apis.append(api)
        return api, desktop

    yield start
    for api in apis:
        await api.close()
