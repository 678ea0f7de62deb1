"""Each application of OSWorld opens its window on the osworld profile."""

from __future__ import annotations

import pytest

from dart_gym.desktops.base.desktop import SettlePolicy

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(120)]

APPLICATIONS = {
    "calc": (["libreoffice", "--calc"], "Untitled 1 - LibreOffice Calc"),
    "writer": (["libreoffice", "--writer"], "Untitled 1 - LibreOffice Writer"),
    "impress": (["libreoffice", "--impress"], "Untitled 1 - LibreOffice Impress"),
    "gimp": (["gimp"], "GNU Image Manipulation Program"),
    "vlc": (["vlc"], "VLC media player"),
    "thunderbird": (["/usr/bin/thunderbird"], "Mozilla Thunderbird"),
    "nautilus": (["nautilus", "/home/user"], "Home"),
    "open a folder": (["xdg-open", "/home/user/Documents"], "Documents"),
    "open a text": (["xdg-open", "/home/user/a.txt"], "a.txt (~) - gedit"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", APPLICATIONS)
async def test_an_application_opens_its_window_and_no_other(start_desktop, until, name):
    desktop = await start_desktop(profile="osworld", width=1920, height=1080)
    await desktop.write_file("/home/user/a.txt", b"a\n")
    command, title = APPLICATIONS[name]
    await desktop.launch(command)

    async def titles():
        return [line.split(None, 3)[3] for line in (await windows(desktop)) if len(line.split(None, 3)) == 4]

    async def opened():
        return any(shown.endswith(title) for shown in await titles())

    await until(opened, timeout=60)
    assert (await desktop.settle(SettlePolicy(quiet_ms=400, max_ms=20_000))).stable  # shorter than a caret blinks
    assert [shown for shown in await titles() if not shown.endswith(title)] == []  # no tip, no question, no splash


async def windows(desktop) -> list[str]:
    return (await desktop.execute(["wmctrl", "-l"])).stdout.decode().splitlines()
