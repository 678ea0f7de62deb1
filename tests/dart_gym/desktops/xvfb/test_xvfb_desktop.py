"""Real desktops: isolation, commands, files, ports, the cursor, and their end."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from dart_gym.core.actions import Click, Drag, Move, Scroll, Wait
from dart_gym.core.errors import DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import ActionError, Desktop, DesktopSpec, SettlePolicy
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox.runtime_directory import clean_leftovers, runtime_dir
from dart_gym.desktops.xvfb.xvfb_desktop import BACKGROUND, XvfbDesktop
from tests.helpers.desktop_end import launch_the_end

pytestmark = pytest.mark.desktop
SANDBOXES = ("bwrap", "none")


def own_directories() -> list[str]:
    return [path.name for path in runtime_dir().iterdir() if path.name.startswith(f"{os.getpid()}-")]


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_desktop_has_a_screen_with_a_cursor_and_leaves_nothing(start_desktop, descendants, sandbox):
    before = descendants(os.getpid())
    desktop = await start_desktop(width=168, height=224, sandbox=sandbox)
    assert isinstance(desktop, Desktop) and desktop.alive
    await desktop.perform(Move(20, 30))
    first = await desktop.screenshot()
    await desktop.perform(Move(100, 150))
    second = await desktop.screenshot()
    assert first.shape == (224, 168, 3) and first.dtype == np.uint8
    background = [*BACKGROUND]
    for frame, x, y in ((first, 20, 30), (second, 100, 150)):
        rows, columns = np.nonzero((frame != background).any(axis=2))
        assert abs(rows.min() - y) <= 2 and abs(columns.min() - x) <= 2, "the arrow's tip is at the pointer"
        assert 8 < np.ptp(rows) < 40 and 5 < np.ptp(columns) < 40
    await desktop.stop()
    assert not desktop.alive
    assert descendants(os.getpid()) == before
    assert own_directories() == []
    await desktop.stop()


async def test_two_desktops_share_nothing(start_desktop, until):
    desktops = [await start_desktop() for _ in range(2)]
    for number, desktop in enumerate(desktops):
        await desktop.write_file("/home/user/site/index.html", b"desktop %d" % number)
        await desktop.write_file("/tmp/mark", b"%d" % number)
        await desktop.launch(["python3", "-m", "http.server", "8000", "--directory", "/home/user/site"])
    for number, desktop in enumerate(desktops):
        path = await desktop.open_port(8000)
        assert path == await desktop.open_port(8000)

        async def fetch(path=path):
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
                try:
                    return (await client.get("http://desktop/")).content
                except httpx.TransportError:
                    return None

        assert await until(fetch) == b"desktop %d" % number
        assert await desktop.read_file("/tmp/mark") == b"%d" % number


async def test_programs_inside_are_an_ordinary_user_without_the_hosts_secrets(start_desktop):
    desktop = await start_desktop(env=(("COLOR", "green"),))
    result = await desktop.execute(
        ["sh", "-c", "id -un; pwd; echo $COLOR; ls /proc | grep -c '^[0-9]'; ls /root /work"]
    )
    user, home, color, processes = result.stdout.decode().split()[:4]
    assert (user, home, color) == ("user", "/home/user", "green") and int(processes) < 15
    assert (await desktop.execute(["cat", "/etc/shadow"])).stdout == b""
    assert (await desktop.execute(["touch", "/usr/x"])).returncode != 0
    names = (await desktop.execute(["env"])).stdout.decode()
    assert "OMP_NUM_THREADS" not in names


async def test_commands_give_their_output_and_end_in_time(start_desktop, until):
    desktop = await start_desktop()
    result = await desktop.execute(
        ["sh", "-c", "cat; echo oops >&2; echo $A; exit 3"], stdin=b"x" * 200_000, env={"A": "b"}
    )
    assert (result.returncode, result.stdout, result.stderr) == (3, b"x" * 200_000 + b"b\n", b"oops\n")
    missing = await desktop.execute(["no-such-program"])
    assert missing.returncode == 127 and b"no-such-program" in missing.stderr
    with pytest.raises(DesktopTimeoutError, match="'sh' did not end within 0.2 s"):
        await desktop.execute(["sh", "-c", "echo $$ > /tmp/pid; sleep 60; true"], timeout=0.2)
    pid = (await desktop.read_file("/tmp/pid")).decode().strip()

    async def gone():
        return (await desktop.execute(["test", "-d", f"/proc/{pid}"])).returncode != 0

    await until(gone)
    with pytest.raises(FileNotFoundError):
        await desktop.launch(["no-such-program"])


async def test_files_keep_their_bytes(start_desktop):
    desktop = await start_desktop()
    data = bytes(range(256)) * 2000
    await desktop.write_file("/home/user/a/b c/ü.bin", data)
    assert await desktop.read_file("~/a/b c/ü.bin") == data
    with pytest.raises(FileNotFoundError):
        await desktop.read_file("/home/user/none")


async def test_actions_off_the_screen_are_action_errors(start_desktop):
    desktop = await start_desktop()
    for action in (Click(320, 5), Click(-1, 5), Move(5, 240), Drag(((1, 1), (5, 400))), Scroll(999, 1, dy=1)):
        with pytest.raises(ActionError, match="off the screen, which is 320 x 240"):
            await desktop.perform(action)
    start = time.perf_counter()
    await desktop.perform(Wait(0.05))
    assert time.perf_counter() - start >= 0.05


async def test_a_margin_below_the_screen_is_drawn_on_and_not_shown(start_desktop):
    desktop = await start_desktop(width=200, height=150, margin=2)
    assert (await desktop.screenshot()).shape == (150, 200, 3)
    margin = await desktop.read_margin()
    assert margin.shape == (2, 200, 3) and (margin == BACKGROUND).all()
    await desktop.perform(Move(0, 149))
    with pytest.raises(ActionError, match="200 x 150"):
        await desktop.perform(Move(0, 150))


async def test_a_still_screen_settles_in_the_quiet_time(start_desktop):
    desktop = await start_desktop(width=1920, height=1080)
    result = await desktop.settle(SettlePolicy(quiet_ms=50, max_ms=1000))
    assert result.stable and 0.05 <= result.waited_s < 0.5 and result.frames > 1


async def test_a_link_in_place_of_a_log_is_not_followed(start_desktop, until):
    desktop = await start_desktop()
    await desktop.execute(["ln", "-sf", "/etc/passwd", "/run/desktop/log/xvfb.log"])
    await launch_the_end(desktop, "sh", "-c", "kill -9 $(ps -o pid= -C openbox)")
    await until(lambda: not desktop.alive)
    with pytest.raises(DesktopError, match="openbox ended") as caught:
        await desktop.screenshot()
    assert "root:" not in str(caught.value)


async def test_a_dead_display_is_noticed_with_its_cause(start_desktop, until):
    desktop = await start_desktop()
    await launch_the_end(desktop, "sh", "-c", "kill -9 $(ps -o pid= -C Xvfb)")
    await until(lambda: not desktop.alive)
    with pytest.raises(DesktopError, match="ended with status"):
        await desktop.screenshot()
    with pytest.raises(DesktopError):
        await desktop.execute(["true"])


async def test_a_desktop_can_be_started_again_but_not_twice(start_desktop):
    desktop = await start_desktop()
    await desktop.write_file("/home/user/old", b"")
    with pytest.raises(DesktopError, match="started already"):
        await desktop.start()
    await desktop.stop()
    with pytest.raises(DesktopError, match="not started"):
        await desktop.screenshot()
    await desktop.start()
    with pytest.raises(FileNotFoundError):
        await desktop.read_file("/home/user/old")


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_stop_during_start_leaves_nothing(descendants, sandbox, delay):
    before = descendants(os.getpid())
    desktop = make_desktop(DesktopSpec(width=64, height=64, profile="browser", sandbox=sandbox))
    starting = asyncio.create_task(desktop.start())
    await asyncio.sleep(delay)
    await desktop.stop()
    with pytest.raises(DesktopError):
        await starting
    assert not desktop.alive
    assert descendants(os.getpid()) == before and own_directories() == []


async def test_a_cancelled_or_late_start_leaves_nothing(descendants):
    before = descendants(os.getpid())
    desktop = make_desktop(DesktopSpec(width=64, height=64, profile="browser"))
    with pytest.raises(DesktopTimeoutError, match="was not ready within 0.1 s"):
        await desktop.start(timeout=0.1)
    starting = asyncio.create_task(desktop.start())
    await asyncio.sleep(0.1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert descendants(os.getpid()) == before and own_directories() == []


OWNER = """
import asyncio, sys
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop

async def main():
    desktop = make_desktop(DesktopSpec(width=168, height=224, profile="browser", sandbox=sys.argv[1]))
    await desktop.start()
    await desktop.launch(["setsid", "sleep", "1000"])
    print("ready", flush=True)
    if sys.argv[2] == "wait":
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.fixture
async def owner():
    """Starts a process that owns a desktop."""
    processes = []

    async def start(*args):
        pipe = asyncio.subprocess.PIPE
        processes.append(await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, *args, stdout=pipe))
        return processes[-1]

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_kill_9_of_the_owner_ends_everything(descendants, until, owner, sandbox):
    process = await owner(sandbox, "wait")
    assert await process.stdout.readline() == b"ready\n"

    def names():
        files = [Path(f"/proc/{pid}/comm") for pid in descendants(process.pid)]
        return {file.read_text().strip() for file in files if file.exists()}

    await until(lambda: {"Xvfb", "openbox", "chromium", "sleep"} <= names())
    pids = descendants(process.pid)
    directories = [path for path in runtime_dir().iterdir() if path.name.startswith(f"{process.pid}-")]
    assert len(directories) == 1 and json.loads((directories[0] / "owner").read_text())["pid"] in pids
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    clean_leftovers()
    assert not directories[0].exists()


async def test_an_owner_that_ends_without_stop_leaves_nothing(owner):
    process = await owner("bwrap", "end")
    assert await process.stdout.readline() == b"ready\n"
    assert await process.wait() == 0
    assert not [path for path in runtime_dir().iterdir() if path.name.startswith(f"{process.pid}-")]


async def test_a_window_that_closed_while_it_was_asked_is_told_to_the_log_alone(capfd, caplog):
    desktop = XvfbDesktop(DesktopSpec(width=168, height=224))
    try:
        await desktop.start()
        with caplog.at_level("DEBUG"):
            display = desktop.connection.display
            display.create_resource_object("window", 0x1234567).map()
            display.sync()
    finally:
        await desktop.stop()
    assert "BadWindow" in caplog.text and capfd.readouterr().err == ""
