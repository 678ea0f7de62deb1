"""What runs on a desktop stays there: from other desktops, from the host, from its control, and not past its end."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from dart_gym.desktops.applications import devtools
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.sandbox.runtime_directory import runtime_dir

pytestmark = pytest.mark.desktop

# Programs that do not want to end. Each has the marker on its command line, or in its environment.
STUBBORN = {
    "forks": 'for i in 1 2 3; do sleep "$0" & done; wait',
    "daemonises": '(setsid setsid sh -c \'sleep "$0" & sleep "$0" & wait\' "$0" </dev/null >/dev/null 2>&1 &) &',
    "ignores signals": 'trap "" TERM HUP INT QUIT; while :; do sleep "$0"; done',
    "hangs": 'sleep "$0" & until pgrep -x sleep; do :; done; kill -STOP $! $$',
    "forks on and on": 'f() { sleep 0.05; f "$0" & }; f; sleep "$0"',
}


def processes_with(marker: str) -> list[str]:
    """Command lines of this machine's processes that hold a text, the test's own apart."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if marker in words and path.parent.name != str(os.getpid()):
            found.append(words)
    return found


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
@pytest.mark.parametrize("kind", STUBBORN)
async def test_programs_that_do_not_want_to_end_are_gone_after_stop(start_desktop, until, sandbox, kind):
    desktop = await start_desktop(sandbox=sandbox)
    marker = f"{os.getpid()}.{list(STUBBORN).index(kind)}{len(sandbox)}"
    await desktop.launch(["sh", "-c", STUBBORN[kind], marker])
    await until(lambda: len(processes_with(f"sleep {marker}")) >= 1)
    await desktop.stop()
    assert processes_with(marker) == []


async def test_two_desktops_run_the_same_browser_on_the_same_port(start_desktop, until):
    desktops = [await start_desktop(profile="osworld", width=640, height=480) for _ in range(2)]
    for number, desktop in enumerate(desktops):
        await desktop.write_file("page.html", f"<title>desktop {number}</title>".encode())
        await desktop.launch(["google-chrome", "--remote-debugging-port=1337", "file:///home/user/page.html"])

    async def titles(desktop):
        try:
            found = await devtools.targets(str(await desktop.open_port(1337)), 1337)
        except httpx.TransportError:
            return None  # not there yet
        return [target["title"] for target in found if target["type"] == "page"]

    for number, desktop in enumerate(desktops):

        async def shown(number=number, desktop=desktop):
            return await titles(desktop) == [f"desktop {number}"]

        await until(shown, timeout=40)
    await desktops[0].execute(["pkill", "chrome"])

    async def ended():
        return (await desktops[0].execute(["pgrep", "chrome"])).returncode == 1

    await until(ended)
    assert await titles(desktops[1]) == ["desktop 1"]


ATTACK = r"""
import ctypes, os, signal, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
names = {int(pid): open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()}
guests = [pid for pid, name in names.items() if name in ("desktop-guest", "desktop-init")]
assert len(guests) == 2 and 1 in guests, names
for pid in guests:
    for name in ("mem", "environ", "maps", "fd/0"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1)
            print("read", name)
        except OSError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
        print("traced")
    handle = os.pidfd_open(pid)
    for number in range(64):
        if libc.syscall(438, handle, number, 0) >= 0:  # pidfd_getfd
            print("took descriptor", number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
for number in (signal.SIGKILL, signal.SIGSTOP):
    os.kill(1, number)  # from inside, the kernel does not let them through
found = subprocess.run(["find", "/", "-xdev", "-name", "guest.sock"], capture_output=True, text=True).stdout
found += subprocess.run(["find", "/run", "/tmp", "/home", "-type", "s"], capture_output=True, text=True).stdout
print("sockets", *sorted(found.split()))
"""


async def test_programs_cannot_reach_the_control_of_their_desktop(start_desktop):
    desktop = await start_desktop()
    result = await desktop.execute(["python3", "-"], stdin=ATTACK.encode())
    assert result.stdout.decode().splitlines() == ["sockets /run/user/1000/bus /tmp/.X11-unix/X0"], result.stderr
    assert desktop.alive
    assert (await desktop.execute(["echo", "still here"])).stdout == b"still here\n"
    assert (await desktop.execute(["pkill", "python"])).returncode == 1  # none is named so but this test's own


async def test_programs_cannot_reach_servers_of_the_host(start_desktop):
    desktop = await start_desktop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        assert subprocess.run(["bash", "-c", script], capture_output=True).returncode == 0  # from outside it works
        result = await desktop.execute(["bash", "-c", script])
        assert result.returncode != 0 and b"refused" in result.stderr


def traces() -> dict[str, object]:
    """What desktops could leave behind on this machine, and nothing that others make who use it at the same time."""
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "directories": [path.name for path in runtime_dir().iterdir() if path.name.startswith(f"{os.getpid()}-")],
        "displays of dead servers": sorted(path.name for path in Path("/tmp").glob(".X*-lock") if is_dead(path)),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def is_dead(lock: Path) -> bool:
    try:
        return not Path(f"/proc/{int(lock.read_text())}").exists()
    except FileNotFoundError:
        return False  # of another's that ended just now


KINDS = (
    {"profile": "osworld"},
    {"profile": "bare", "sandbox": "none"},
    {"profile": "bare"},
    {"profile": "osworld", "sandbox": "none"},
    {"profile": "browser"},
)


async def reset_often(times: int, descendants) -> None:
    await make_and_stop(0)  # what is made once in a process: threads of the pool, imports
    await make_and_stop(1)
    processes, before = descendants(os.getpid()), traces()
    for number in range(times):
        await make_and_stop(number)
    assert descendants(os.getpid()) == processes
    assert traces() == before


async def make_and_stop(number: int) -> None:
    desktop = make_desktop(DesktopSpec(width=168, height=224, **KINDS[number % len(KINDS)]))
    await desktop.start()
    try:
        await desktop.launch(["sh", "-c", "setsid sleep 1000 & sleep 1000"])
        await desktop.write_file("/tmp/file" if desktop.spec.sandbox == "bwrap" else "file", b"x")
        await desktop.screenshot()
    finally:
        await desktop.stop()


async def test_resets_leave_nothing(descendants):
    await reset_often(5, descendants)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_hundred_resets_leave_nothing(descendants):
    await reset_often(200, descendants)
