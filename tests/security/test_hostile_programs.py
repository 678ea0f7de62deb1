"""What a program in a desktop does to its display, framebuffer, logs and files harms that desktop alone.

The server is a process of its own, with two clients: one has the hostile program, the other plays on beside it.
"""

from __future__ import annotations

import asyncio
import os
import time

import numpy as np
import pytest

from dart_gym.core.actions import Click, Done, Move, Press, Type
from dart_gym.core.errors import DesktopError
from dart_gym.core.outcomes import TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.keeper import kept_desktop
from dart_gym.desktops.sandbox.guest_client import MAX_FILE
from tests.helpers.desktop_end import launch_the_end

pytestmark = [pytest.mark.security, pytest.mark.desktop]

SIZE = {"width": 320, "height": 240}
CLEAN = {"id": "clean", "instruction": "", "evaluator": {"func": "infeasible"}}
LONGEST_STEP_S = 10.0  # of a neighbour on a busy machine: a step is a fraction of a second

GRAB = """exec python3 - <<'END'
import time
from Xlib.display import Display
display = Display(":0")
display.grab_server()
display.sync()
time.sleep(1000)
END
"""
ATTACKS = {
    "the display server is stopped": "pkill -STOP Xvfb",
    "the display server is taken by one client": GRAB,
    "the framebuffer is cut to nothing": "truncate -s 0 /run/desktop/Xvfb_screen0",
}


def hostile(command: str) -> dict[str, object]:
    """A task whose set-up starts a program, which begins once the episode runs."""
    script = f"sleep 2; {command}"
    return {**CLEAN, "id": "hostile", "config": [{"type": "launch", "parameters": {"command": ["sh", "-c", script]}}]}


async def play_until_lost(session, action) -> TerminalState:
    """Step until the episode ends by itself; how it did."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        result = await session.step(action)
        if result.terminal is not None:
            return result.terminal
    raise AssertionError("the attack had no effect")


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_the_display_ends_its_own_desktop_alone(cluster, attack):
    neighbour, attacker = cluster.client().session(), cluster.client().session()
    await neighbour.reset(CLEAN, seed=0, max_steps=100_000, desktop=SIZE)
    result = await attacker.reset(hostile(ATTACKS[attack]), seed=0, max_steps=100_000, desktop=SIZE)
    assert result.terminal is None, result.observation.action_error
    pid = cluster.pid
    lost = asyncio.create_task(play_until_lost(attacker, Click(50, 60)))
    steps = 0
    while not lost.done():
        started = time.monotonic()
        result = await neighbour.step(Move(10 + steps % 200, 20))
        steps += 1
        assert result.terminal is None and result.step_index == steps, result
        assert time.monotonic() - started < LONGEST_STEP_S
    assert not (await lost).trainable or (await lost).value == "desktop_killed"
    assert cluster.pid == pid and steps > 5
    result = await attacker.reset(CLEAN, seed=0, desktop=SIZE)
    assert result.terminal is None, "the attacker's next desktop is a fresh one"
    assert (await neighbour.step(Move(5, 5))).terminal is None
    for session in (neighbour, attacker):
        await session.close()


@pytest.fixture
async def desktop():
    """A desktop of this process."""
    desktop = make_desktop(DesktopSpec(**SIZE))
    await desktop.start()
    yield desktop
    await desktop.stop()


async def test_a_desktop_that_does_not_answer_is_ended_with_all_its_processes(desktop, monkeypatch):
    monkeypatch.setattr(kept_desktop, "ANSWER_S", 1.0)
    await desktop.execute(["pkill", "-STOP", "Xvfb"])
    with pytest.raises(DesktopError, match="did not answer 'perform' within 1 s, and was ended"):
        await desktop.perform(Click(5, 5))
    assert not desktop.alive
    with pytest.raises(DesktopError, match="was ended"):
        await desktop.screenshot()
    await desktop.stop()


async def test_a_pipe_in_place_of_a_log_holds_nobody_up(desktop):
    await desktop.execute(["sh", "-c", "cd /run/desktop/log && rm xvfb.log && mkfifo xvfb.log"])
    await launch_the_end(desktop, "pkill", "-9", "openbox")
    async with asyncio.timeout(10):
        with pytest.raises(DesktopError, match="openbox ended"):
            while True:
                await desktop.screenshot()


@pytest.mark.parametrize("place", ["/run/desktop/log", "/run/desktop/log/guest.log"])
async def test_a_link_in_place_of_logs_leads_nowhere(desktop, tmp_path, place):
    (tmp_path / "guest.log").write_text("secret of the host")
    target = tmp_path if place.endswith("/log") else tmp_path / "guest.log"
    await launch_the_end(desktop, "sh", "-c", f"mv {place} /tmp/away; ln -s {target} {place}; pkill -9 openbox")
    async with asyncio.timeout(10):
        with pytest.raises(DesktopError) as caught:
            while True:
                await desktop.screenshot()
    assert "secret of the host" not in str(caught.value)


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def longest_pause(running: asyncio.Future[object]) -> float:
    """The longest time that the event loop was held up until something was done."""
    longest, last = 0.0, time.monotonic()
    while not running.done():
        await asyncio.sleep(0.01)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.parametrize("size", [MAX_FILE + 1, 1_500_000_000])
async def test_a_huge_file_is_refused_without_being_read(desktop, size):
    await desktop.execute(["truncate", "-s", str(size), "/tmp/huge"])
    before = resident_bytes()
    reading = asyncio.ensure_future(desktop.read_file("/tmp/huge"))
    assert await longest_pause(reading) < 1.0
    with pytest.raises(OSError, match="larger than"):
        await reading
    assert resident_bytes() - before < 20_000_000
    assert (await desktop.read_file("/proc/self/comm")).strip() == b"desktop-guest"


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/random", "/tmp/pipe"])
async def test_a_link_to_what_never_ends_is_refused(desktop, target):
    await desktop.execute(["sh", "-c", f"mkfifo /tmp/pipe; ln -s {target} /home/user/result.txt"])
    async with asyncio.timeout(10):
        with pytest.raises(OSError, match="no regular file"):
            await desktop.read_file("/home/user/result.txt")
    async with asyncio.timeout(10):
        with pytest.raises(OSError, match="no regular file|No such device"):
            await desktop.write_file("/home/user/result.txt", b"x")
    processor = (await desktop.execute(["sh", "-c", "cat /proc/$(pgrep desktop-guest)/stat"])).stdout.split()
    assert int(processor[13]) + int(processor[14]) < 300, "the guest works on at what nobody waits for"


async def test_a_program_that_writes_for_ever_is_ended(desktop):
    before = resident_bytes()
    running = asyncio.ensure_future(desktop.execute(["cat", "/dev/zero"], timeout=60))
    assert await longest_pause(running) < 1.0
    with pytest.raises(DesktopError, match="wrote more than"):
        await running
    assert resident_bytes() - before < 20_000_000
    assert (await desktop.execute(["pgrep", "-x", "cat"])).returncode == 1


async def test_programs_cannot_open_the_memory_of_frames(desktop):
    shown = await desktop.screenshot()
    found = await desktop.execute(["sh", "-c", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c desktop-frame"])
    assert found.stdout.strip() == b"0"
    assert np.array_equal(shown, await desktop.screenshot())


GIGABYTE = "head -c 1073741824 /dev/zero | tr '\\0' a | xclip -selection clipboard > /dev/null 2>&1"


@pytest.mark.slow
async def test_a_gigabyte_on_the_clipboard_holds_nobody_up(cluster):
    copies = {"type": "execute", "parameters": {"command": ["sh", "-c", GIGABYTE]}}
    edits = {"type": "launch", "parameters": {"command": ["mousepad", "/home/user/a.txt"]}}
    async with cluster.client().session() as session:
        result = await session.reset({**CLEAN, "config": [copies, edits]}, seed=0, max_steps=30, desktop=SIZE)
        assert result.terminal is None, result.observation.action_error
        for action in (Click(160, 120), Press(("ctrl", "v")), Type("x"), Press(("ctrl", "a")), Press(("ctrl", "c"))):
            started = time.monotonic()
            result = await session.step(action)
            assert result.terminal is None and time.monotonic() - started < LONGEST_STEP_S
        assert (await session.step(Done())).terminal is TerminalState.DONE
        assert (await session.reset(CLEAN, seed=0, desktop=SIZE)).terminal is None
