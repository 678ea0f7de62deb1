"""What the kernel counts for a user as a whole, one desktop takes neither from the next nor from its server."""

from __future__ import annotations

import ctypes
import json
import os

import pytest

from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement.bubblewrap import launcher
from dart_gym.desktops.factory import make_desktop

pytestmark = [pytest.mark.security, pytest.mark.desktop]
SIZE = {"width": 320, "height": 240}

# Takes all it can of each, says how much, and keeps it for as long as it is told to.
TAKES = """
import ctypes, fcntl, json, os, resource, select, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
kept, taken = [], {}
def take(name, call, most=100_000):
    taken[name] = 0
    while taken[name] < most:
        try:
            got = call()
        except OSError:
            return
        if isinstance(got, int) and got < 0:
            return
        kept.append(got)
        taken[name] += 1
def pipe():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, 1 << 20)
def timer():
    found = ctypes.c_void_p()
    return libc.timer_create(1, None, ctypes.byref(found))
def queue(n=iter(range(10**9))):
    return libc.mq_open(b"/q%d" % next(n), os.O_CREAT | os.O_RDWR, 0o600, None)
librt = ctypes.CDLL("librt.so.1")
libc.mq_open = librt.mq_open
watched = libc.inotify_init()
os.makedirs("/tmp/watched", exist_ok=True)
def watch(n=iter(range(10**9))):
    path = f"/tmp/watched/{next(n)}"
    os.mkdir(path)
    return libc.inotify_add_watch(watched, path.encode(), 2)
take("instances", libc.inotify_init, int(sys.argv[1]))
take("watches", watch, int(sys.argv[2]))
take("pipes", pipe)
take("small_pipes", os.pipe, min(2000, int(sys.argv[1])))
for pair in kept[-8:]:  # descriptors for what follows
    for end in pair:
        os.close(end)
take("timers", timer)
take("queues", queue)
take("keys", lambda: libc.syscall(248, b"user", b"x", b"y", 1, -2))
take("aio", lambda: libc.syscall(206, 1000, ctypes.byref(ctypes.c_ulong())))
print(json.dumps(taken), flush=True)
if sys.argv[3:]:
    open("/tmp/taken", "w").write(json.dumps(taken))
    time.sleep(1000)
"""


def own_instances() -> int:
    """How many instances of inotify this process still gets."""
    libc, fds = ctypes.CDLL(None), []
    while len(fds) < 8 and (fd := libc.inotify_init()) >= 0:
        fds.append(fd)
    for fd in fds:
        os.close(fd)
    return len(fds)


async def test_one_desktop_takes_nothing_from_the_next():
    first, second = (make_desktop(DesktopSpec(**SIZE, storage_mb=256)) for _ in range(2))
    await first.start()
    await second.start()
    try:
        await first.launch(["python3", "-c", TAKES, "100000", "20000", "keep"])
        while (found := await first.execute(["cat", "/tmp/taken"])).returncode or not found.stdout:
            pass
        taken = json.loads(found.stdout)
        rest = json.loads((await second.execute(["python3", "-c", TAKES, "8", "500"])).stdout)
        assert (rest["instances"], rest["watches"]) == (8, 500), (taken, rest)
        assert rest["small_pipes"] == 8, "a thousand pipes of one desktop leave the next one its own"
        piped = await second.execute(["bash", "-c", "head -c 3000000 /dev/zero | cat | wc -c"])
        assert piped.stdout.strip() == b"3000000", piped
        assert rest["timers"] > 500 and rest["queues"] >= 2, (taken, rest)
        assert taken["timers"] <= 2048 and taken["queues"] < 10 and own_instances() == 8
        assert taken["pipes"] == taken["keys"] == taken["aio"] == 0, taken
    finally:
        await first.stop()
        await second.stop()


def test_limits_stand_outside_of_the_sandbox_and_before_it():
    command = launcher(None, [], {}, {"max_inotify_instances": 5})
    assert command[0] == "unshare" and any("echo 5 > /proc/sys/user/max_inotify_instances" in word for word in command)
    assert launcher(None, [], {}, {}) == launcher(None, [], {}) and "unshare" not in launcher(None, [], {})
