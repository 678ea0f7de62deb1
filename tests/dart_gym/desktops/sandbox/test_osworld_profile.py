"""The profile "osworld": the machine that OSWorld's tasks expect, on a real screen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dart_gym.core.actions import Press, Type
from dart_gym.desktops.applications import devtools
from dart_gym.desktops.base.desktop import SettlePolicy
from dart_gym.desktops.osworld_api.api_commands import window_size
from dart_gym.desktops.sandbox import osworld_profile

pytestmark = pytest.mark.desktop
SHIMS = Path(osworld_profile.__file__).with_name("shims")


@pytest.fixture
async def machine(start_desktop):
    return await start_desktop(profile="osworld", width=1920, height=1080)


async def shell(desktop, script: str, timeout: float = 30.0) -> str:
    """Standard output of a script that must succeed."""
    result = await desktop.execute(["bash", "-c", script], timeout=timeout)
    assert result.returncode == 0, f"{script}: {result.stdout!r} {result.stderr!r}"
    return result.stdout.decode().strip()


async def test_the_user_has_his_folders_and_a_bus(machine):
    assert await shell(machine, "id -un; xdg-user-dir DOWNLOAD") == "user\n/home/user/Downloads"
    assert "Templates" in await shell(machine, "ls ~")
    assert await shell(machine, "test -S /run/user/1000/bus && echo $DBUS_SESSION_BUS_ADDRESS | cut -d, -f1") == (
        "unix:path=/run/user/1000/bus"
    )


async def test_settings_are_kept_in_the_home_directory(machine):
    assert await shell(machine, "gsettings get org.gnome.desktop.interface toolkit-accessibility") == "true"
    await shell(machine, "gsettings set org.gnome.desktop.session idle-delay 123")
    assert await shell(machine, "gsettings get org.gnome.desktop.session idle-delay") == "uint32 123"
    assert len(await machine.read_file("~/.config/dconf/user")) > 50
    assert "Nautilus" in await shell(machine, "gsettings get org.gnome.shell favorite-apps")


async def test_python_moves_the_pointer_and_takes_screenshots(machine):
    program = (
        "import pyautogui; pyautogui.FAILSAFE = False; pyautogui.moveTo(700, 400); "
        "print(pyautogui.position(), pyautogui.screenshot().size)"
    )
    for name in ("python", "python3"):
        assert await shell(machine, f"{name} -c '{program}'") == "Point(x=700, y=400) (1920, 1080)"


GNOMES_OWN = """#!/bin/sh
# As GNOME's program does when it is unlucky: a file that exists is not replaced in time.
[ -e "$2" ] || echo "picture of $3" > "$2"
"""


@pytest.mark.parametrize("option", [("-f", "{}"), ("--file", "{}"), ("--file={}",), ("-f{}",)])
def test_a_screenshot_replaces_a_file_that_exists(tmp_path, option):
    own, shim, target = tmp_path / "own", tmp_path / "shim", tmp_path / "a b.png"
    own.write_text(GNOMES_OWN)
    shim.write_text((SHIMS / "gnome-screenshot").read_text().replace("/usr/bin/gnome-screenshot", str(own)))
    own.chmod(0o755)
    target.touch()
    subprocess.run(["sh", shim, "-w", *(part.format(target) for part in option)], check=True)
    assert target.read_text() == "picture of -w\n"
    assert sorted(tmp_path.iterdir()) == sorted([own, shim, target])


async def test_pictures_of_a_fresh_machine_are_whole(machine):
    many = "for i in 1 2 3; do : > p.png; gnome-screenshot -f p.png; stat -c %s p.png; done 2> /dev/null"
    assert all(int(size) > 1000 for size in (await shell(machine, many)).split())


async def test_sound_goes_nowhere_and_its_volume_can_be_set(machine):
    assert " 50%" in await shell(machine, "pactl get-sink-volume @DEFAULT_SINK@")
    await shell(machine, "pactl set-sink-volume @DEFAULT_SINK@ 40%")
    assert " 40%" in await shell(machine, "pactl get-sink-volume @DEFAULT_SINK@")


async def test_sudo_asks_for_the_password(machine):
    assert await shell(machine, "printf 'password\\nrest' | sudo -S cat; sudo -n id -un") == "restuser"  # asked once
    assert (await machine.execute(["sudo", "-n", "true"])).returncode == 1  # another session
    wrong = await machine.execute(["sudo", "-S", "touch", "/tmp/never"], stdin=b"a\nb\nc\n")
    assert wrong.returncode == 1 and b"3 incorrect password attempts" in wrong.stderr
    ended = await machine.execute(["sudo", "-S", "touch", "/tmp/never"], stdin=b"a\n")
    assert ended.returncode == 1 and b"no password was provided" in ended.stderr
    forgotten = "echo password | sudo -S true; sudo -k; sudo -n true; echo $?"
    assert await shell(machine, forgotten) == "1"
    missing = await machine.execute(["sudo", "-S", "no-such-program"], stdin=b"password\n")
    assert missing.returncode == 1 and b"command not found" in missing.stderr
    assert await shell(machine, "echo password | sudo -S -u root B=2 sh -c 'echo $B'") == "2"
    assert await shell(machine, "test -e /tmp/never || echo never") == "never"


async def test_apt_answers_by_what_is_installed(machine):
    await shell(machine, "echo password | sudo -S apt-get update -y && echo password | sudo -S apt-get install -y bash")
    missing = await machine.execute(["apt", "install", "-y", "no-such-package"])
    assert missing.returncode == 100 and b"no-such-package" in missing.stderr
    assert "bash/" in await shell(machine, "apt list --installed 2>/dev/null")


async def test_a_chord_right_after_the_start_opens_a_terminal(machine, until):
    await machine.perform(Press(("ctrl", "alt", "t")))

    async def terminal():
        return (await machine.execute(["xdotool", "getactivewindow", "getwindowname"])).stdout == b"Terminal\n"

    await until(terminal, timeout=30)
    await machine.settle(SettlePolicy(quiet_ms=300, max_ms=5000))
    await machine.perform(Type("echo $((6 * 7)) > answer\n"))

    async def answered():
        return (await machine.execute(["cat", "answer"])).stdout == b"42\n"

    await until(answered)


async def test_chrome_has_its_name_its_profile_and_its_port(machine, until):
    await machine.launch(["google-chrome", "--remote-debugging-port=1337", "about:blank"])
    await machine.launch(["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"])

    async def answers():
        return (await machine.execute(["wget", "-qO-", "http://localhost:9222/json/version"])).stdout

    assert b"Chrome/" in await until(answers, timeout=30)
    found = await devtools.targets(str(await machine.open_port(9222)), 9222)
    assert any(target["type"] == "page" for target in found)
    assert "Default" in await shell(machine, "ls ~/.config/google-chrome")
    await shell(machine, "pkill chrome")

    async def gone():
        return not (await machine.execute(["pgrep", "chrome"])).stdout

    await until(gone)
    assert machine.alive


async def test_chromes_window_is_found_by_the_names_that_osworld_uses(machine, until):
    await machine.launch(["google-chrome", "about:blank"])

    async def window():
        row = (await machine.execute(["wmctrl", "-lGx"])).stdout.decode().strip()
        ready = row.endswith(" - Google Chrome") and window_size(row, "google-chrome") == (1920, 1080)
        return row if ready else ""  # a new one has another title, and another size, for a moment

    row = await until(window, timeout=60)
    assert row.endswith(" - Google Chrome")
    assert window_size(row, "google-chrome") == (1920, 1080)
    assert row.split()[6] == "google-chrome.Google-chrome"

    async def named():
        tree = (await machine.accessibility_tree()).xml
        return '<application name="Google Chrome"' in tree and ' - Google Chrome"' in tree

    await until(named, timeout=30)


async def test_files_open_with_the_usual_applications(machine):
    script = (
        "for kind in text/html text/plain image/png application/pdf video/mp4; do xdg-mime query default $kind; done"
    )
    assert [name.split(".")[-2] for name in (await shell(machine, script)).split()] == [
        *("google-chrome", "gedit", "eog", "Evince", "Totem")
    ]


async def test_without_a_sandbox_it_does_what_it_can(start_desktop):
    desktop = await start_desktop(profile="osworld", sandbox="none", width=640, height=480)
    program = "import pyautogui; print(*pyautogui.size())"
    assert await shell(desktop, f"python -c '{program}'") == "640 480"
    assert await shell(desktop, "gsettings get org.gnome.desktop.interface toolkit-accessibility") == "true"
    assert await shell(desktop, "ls ~/Desktop; echo password | sudo -S echo done") == "done"
    assert (await shell(desktop, "command -v google-chrome")).endswith("/machine/bin/google-chrome")
