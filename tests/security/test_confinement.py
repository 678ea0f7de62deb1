"""What holds a desktop's programs: a user without rights, a filter of system calls, limits, and little of the machine.

`make test-security` runs these as root and as an ordinary user: every attack is refused for both.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from dart_gym.commands import doctor
from dart_gym.core.errors import DesktopError
from dart_gym.desktops.confinement import machine_settings, resource_limits, user_ids
from dart_gym.desktops.sandbox import sandbox_end

pytestmark = [pytest.mark.security, pytest.mark.desktop]

TIGHT = {"memory_mb": 600, "processes": 96, "storage_mb": 16, "cpus": 1.0}


async def told(desktop, program: str, **options) -> dict[str, object]:
    """What a Python program in a desktop prints as JSON."""
    result = await desktop.execute(["python3", "-"], stdin=program.encode(), **options)
    assert result.returncode == 0, result.stderr.decode()
    return json.loads(result.stdout)


def host_users(marker: str) -> set[int]:
    """Which users of this machine run `sleep MARKER`."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{marker}\0".encode():
                found.add(path.stat().st_uid)
        except OSError:
            continue  # it has ended
    return found


async def wait_until(condition, timeout: float = 20.0):
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
async def test_programs_are_never_root_and_desktops_of_root_share_no_user(start_desktop, sandbox):
    users = []
    for number in range(2):
        desktop = await start_desktop(sandbox=sandbox)
        marker = f"{os.getpid()}.{number}"
        await desktop.launch(["sleep", marker])
        (user,) = await wait_until(lambda marker=marker: host_users(marker))
        users.append(user)
    assert 0 not in users
    assert len(set(users)) == (2 if os.geteuid() == 0 else 1)


MACHINE = r"""
import ctypes, json, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
writable = [os.path.join(top, name) for top, _, names in os.walk("/proc/sys") for name in names
            if os.access(os.path.join(top, name), os.W_OK)]
mounted = [kind for kind in ("cgroup2", "cgroup", "proc", "sysfs", "tmpfs")
           if libc.mount(b"x", b"/tmp", kind.encode(), 0, None) == 0]
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(json.dumps({
    "writable": writable, "mounted": mounted, "sys": os.path.exists("/sys"),
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no new rights": status["NoNewPrivs"], "filter": status["Seccomp"],
    "places": [path for path in ("/", "/dev", "/etc", "/usr", "/run/guest") if os.access(path, os.W_OK)],
    "keys": open("/proc/keys").read() if os.path.exists("/proc/keys") else "",
}))
"""


async def test_nothing_of_the_kernel_can_be_set_and_nothing_mounted(start_desktop):
    keys = Path("/proc/keys")
    hosts = {line.split()[0] for line in keys.read_text().splitlines()} if keys.exists() else set()
    found = await told(await start_desktop(), MACHINE)
    assert found["writable"] == [] and found["mounted"] == [] and not found["sys"] and found["places"] == []
    assert set(found["capabilities"]) == {"0000000000000000"}
    assert found["no new rights"] == "1" and found["filter"] == "2"
    session = {line.split()[0] for line in found["keys"].splitlines() if "_ses" in line}
    assert (session - hosts) or not keys.exists()  # a keyring of its own


CALLS = r"""
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine
numbers = {
    "x86_64": {"add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "setns": 308, "bpf": 321,
               "userfaultfd": 323, "memfd_secret": 447, "perf_event_open": 298, "ptrace": 101, "io_uring_setup": 425,
               "kexec_load": 246, "init_module": 175, "process_vm_readv": 310, "pidfd_getfd": 438, "clone3": 435,
               "open_by_handle_at": 304, "fsopen": 430, "mount_setattr": 442, "move_pages": 279, "quotactl": 179},
    "aarch64": {"add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "setns": 268, "bpf": 280,
                "userfaultfd": 282, "memfd_secret": 447, "perf_event_open": 241, "ptrace": 117, "io_uring_setup": 425,
                "kexec_load": 104, "init_module": 105, "process_vm_readv": 270, "pidfd_getfd": 438, "clone3": 435,
                "open_by_handle_at": 265, "fsopen": 430, "mount_setattr": 442, "move_pages": 239, "quotactl": 60},
}[machine]
answers = {}
for name, number in numbers.items():
    ctypes.set_errno(0)
    answers[name] = "done" if libc.syscall(number, 0, 0, 0, 0, 0) >= 0 else errno.errorcode[ctypes.get_errno()]
flags = {"user": 0x10000000, "net": 0x40000000, "pid": 0x20000000, "mount": 0x20000}
for name, flag in flags.items():
    pid = libc.syscall({"x86_64": 56, "aarch64": 220}[machine], flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    answers["clone " + name] = "done" if pid > 0 else errno.errorcode[ctypes.get_errno()]
for family in (17, 38, 40, 31, 29, 44):  # packets, cryptography, virtual machines, bluetooth, CAN, XDP
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_SEQPACKET).close()
        answers[f"socket {family}"] = "done"
    except OSError as error:
        answers[f"socket {family}"] = errno.errorcode[error.errno]
print(json.dumps(answers))
"""


async def test_calls_that_no_application_needs_are_refused_and_named(start_desktop):
    desktop = await start_desktop()
    answers = await told(desktop, CALLS)
    absent = {"clone3", "io_uring_setup"}  # as on an older kernel, so that libraries take their other way
    assert {name for name, answer in answers.items() if answer == "ENOSYS"} == absent
    sockets = {name: answer for name, answer in answers.items() if name.startswith("socket")}
    assert set(sockets.values()) == {"EAFNOSUPPORT"}
    rest = {name: answer for name, answer in answers.items() if name not in {*absent, *sockets}}
    assert set(rest.values()) == {"EPERM"}, rest
    await desktop.stop()
    assert {f"python3: {name}" for name in ("keyctl", "unshare", "ptrace", "bpf")} <= set(sandbox_end.kept_refused())


async def test_the_log_names_the_program_whose_call_was_refused(start_desktop):
    desktop = await start_desktop()
    await desktop.execute(["unshare", "-U", "true"])
    with pytest.raises(DesktopError, match="refused system call unshare of the program 'unshare'"):
        await desktop.execute(["sh", "-c", "kill -9 $(pgrep -x Xvfb); sleep 20"])


async def test_an_application_that_needs_a_refused_call_is_named_by_doctor(start_desktop):
    desktop = await start_desktop()
    name = f"needs-{os.getpid()}"
    await desktop.execute(["sh", "-c", f"cp /usr/bin/unshare /tmp/{name}; /tmp/{name} -U true"])
    await desktop.stop()
    finding = doctor.check_refused()
    assert not finding.ok and f"{name}: unshare" in finding.detail and "--isolation none" in finding.remedy


async def test_of_etc_and_opt_only_what_applications_read_is_seen(start_desktop):
    desktop = await start_desktop()
    shown = (await desktop.execute(["find", "/etc", "-mindepth", "1"])).stdout.decode().split()
    assert "/etc/passwd" in shown and "/etc/fonts" in shown and "/etc/ssl/certs" in shown
    for secret in ("shadow", "gshadow", "sudoers", "ssh", "ssl/private", "hostname", "crontab", "apt", "systemd"):
        assert f"/etc/{secret}" not in shown
    unreadable = (await desktop.execute(["find", "/etc", "!", "-type", "l", "!", "-readable"])).stdout
    assert unreadable == b""
    opt = (await desktop.execute(["sh", "-c", "ls /opt 2>/dev/null"])).stdout.decode().split()
    assert set(opt) <= {"google", "chromium.org", "brave.com", "microsoft", "firefox", "vivaldi"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put files there")
async def test_a_secret_file_of_the_machine_is_not_shown(start_desktop):
    secrets = [Path(place, f"dart-secret-{os.getpid()}") for place in ("/etc", "/opt", "/etc/fonts")]
    for secret in secrets:
        secret.write_text("secret")
        secret.chmod(0o600)
    machine_settings.made_copy.cache_clear()
    try:
        desktop = await start_desktop()
        for secret in secrets:
            assert (await desktop.execute(["cat", str(secret)])).returncode != 0
    finally:
        for secret in secrets:
            secret.unlink()


FORKS = r"""
import json, os, time
made = 0
try:
    for _ in range(2000):
        if os.fork() == 0:
            os.closerange(0, 3)
            time.sleep(1000)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(json.dumps({"made": made}))
"""


async def test_a_desktop_has_as_many_processes_as_it_may(start_desktop):
    desktop = await start_desktop(**TIGHT)
    neighbour = await start_desktop(**TIGHT)
    assert 0 < (await told(desktop, FORKS))["made"] < TIGHT["processes"]
    assert (await neighbour.execute(["echo", "still here"])).stdout == b"still here\n"
    await desktop.stop()


FILLS = r"""
import json, os
written = {}
for place in ("/home/user", "/tmp", "/dev/shm", "/var/tmp", "/run/desktop", "/run/desktop/log", "/run/user/1000"):
    with open(os.path.join(place, "fill"), "wb", buffering=0) as file:
        try:
            for number in range(400):
                file.write(bytes(1 << 20))
            written[place] = "all"
        except OSError as error:
            written[place] = os.strerror(error.errno)
    os.unlink(os.path.join(place, "fill"))
print(json.dumps(written))
"""


async def test_no_place_for_files_is_endless(start_desktop):
    desktop = await start_desktop(**TIGHT)
    assert set((await told(desktop, FILLS)).values()) == {"No space left on device"}
    assert desktop.alive


async def test_a_program_that_takes_all_memory_is_ended_and_its_desktop_goes_on(start_desktop):
    desktop = await start_desktop(**TIGHT)
    hog = "parts = []\nwhile True:\n    parts.append(bytearray(b'x') * (32 << 20))\n"
    result = await desktop.execute(["python3", "-c", hog])
    assert result.returncode != 0  # killed, or told that there is no more
    assert (await desktop.execute(["echo", "still here"])).stdout == b"still here\n"


async def test_many_programs_that_take_memory_together_are_held_too(start_desktop):
    desktop = await start_desktop(**{**TIGHT, "memory_mb": 300})
    hog = "import time; kept = bytearray(b'x') * (40 << 20); time.sleep(1000)"
    look = "n=$(pgrep -fc '^python3 -c import'); [ $n -lt 15 ] && break; sleep 0.5"  # a busy machine starts them late
    script = f'for i in $(seq 30); do python3 -c "{hog}" >/dev/null 2>&1 & done; sleep 5; '
    script += f"for i in $(seq 60); do {look}; done; echo $n"
    result = await desktop.execute(["sh", "-c", script], timeout=60)
    assert int(result.stdout.split()[-1]) < 15, result


async def test_an_output_without_end_fills_no_disk(start_desktop):
    desktop = await start_desktop(**TIGHT)
    await desktop.launch(["yes"])
    size = "stat -c %s /run/desktop/log/program-1.log"
    until_full = f"while s=$({size}); sleep 0.3; [ $s != $({size}) ]; do :; done; echo $s"
    result = await desktop.execute(["sh", "-c", until_full], timeout=60)
    assert int(result.stdout) <= 64 << 20
    assert (await desktop.execute(["pkill", "yes"])).returncode in (0, 1) and desktop.alive


async def test_control_groups_are_gone_with_their_desktop(start_desktop):
    places = [place for place, _ in resource_limits.group_places()]
    before = {path for place in places for path in place.glob("dart-gym.*")}
    desktop = await start_desktop()
    await desktop.stop()
    assert {path for place in places for path in place.glob(f"dart-gym.*.{os.getpid()}-*")} - before == set()


async def test_who_does_not_know_the_cookie_sees_no_display_without_a_sandbox(start_desktop):
    desktop = await start_desktop(sandbox="none")
    display = (await desktop.execute(["sh", "-c", "echo $DISPLAY"])).stdout.decode().strip()
    assert (await desktop.execute(["xdpyinfo"])).returncode == 0
    environment = {**os.environ, "DISPLAY": display, "XAUTHORITY": "/dev/null"}
    command = [*user_ids.as_user(1_899_999_999), "xdpyinfo"] if os.geteuid() == 0 else ["xdpyinfo"]
    if os.geteuid() == 0:  # an ordinary user's own programs may look at its display
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode != 0 and "uthoriz" in result.stderr
