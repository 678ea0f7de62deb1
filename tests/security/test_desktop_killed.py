"""Breaking the desktop is a failure of who acts in it, with a score of 0; what the host breaks is lost, without one."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from dart_agent.episodes.play import lost_by
from dart_gym.cluster.server.server_metrics import Metrics
from dart_gym.cluster.wire import frames
from dart_gym.core.actions import Done, Move
from dart_gym.core.errors import DesktopError, DesktopKilledError, EvaluationFailure, TaskError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement import first_process
from dart_gym.desktops.confinement.resource_limits import ControlGroups
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.keeper.held_up import Busy, Delay, ProcessState, delay_of
from dart_gym.desktops.sandbox.guest import descendants
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.utils.prometheus_text import render

pytestmark = pytest.mark.security
SIZE = {"width": 320, "height": 240}


def task(command, evaluator="infeasible"):
    """A task whose set-up plants a program; it begins once the episode runs."""
    planted = {"type": "launch", "parameters": {"command": ["sh", "-c", command]}}
    return {"id": "t", "instruction": "", "config": [planted], "evaluator": {"func": evaluator}}


async def played(session, action=None):
    """Step until the episode ends; its last result."""
    for _ in range(600):
        result = await session.step(action or Move(5, 5))
        if result.terminal is not None:
            return result
    raise AssertionError("nothing ended the episode")


@pytest.mark.desktop
@pytest.mark.parametrize(
    "attack",
    [
        "pkill Xvfb", "pkill -9 Xvfb", "pkill -9 openbox", "pkill -9 dbus-daemon", "kill -9 -1", "pkill -STOP Xvfb",
        "kill -9 2", "kill -STOP 2", "pkill -SEGV openbox",
    ],
)  # fmt: skip
async def test_what_a_program_ends_counts_as_the_policy_s_failure(cluster, attack):
    async with cluster.client().session() as session:
        result = await session.reset(task(f"sleep 2; {attack}"), seed=0, max_steps=1000, desktop=SIZE)
        assert result.terminal is None, result.observation.action_error
        last = await played(session)
        assert last.terminal is TerminalState.DESKTOP_KILLED, last.evaluation
        assert last.evaluation.status is EvaluationStatus.OK and last.evaluation.score == 0.0 and last.reward == 0.0
        assert last.terminal.trainable and not last.terminal.truncated
        assert lost_by(last.terminal, last.evaluation) == ""  # so it is trained on
        assert (await session.reset(task("true"), seed=0, desktop=SIZE)).terminal is None


class EndedDesktop(FakeDesktop):
    """One whose programs end it when it is judged."""

    killed = False

    async def wait_until_ended(self):
        assert self.killed or await asyncio.Event().wait()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("failure", [EvaluationFailure, DesktopError, TaskError, OSError])
async def test_ending_the_desktop_while_it_is_judged_is_no_way_out(inside, failure, monkeypatch):
    desktop = EndedDesktop(DesktopSpec("fake"))

    async def evaluate(*_):
        desktop.killed = inside
        raise failure("the evaluator found nobody")

    session = Session(Slot("0", lambda spec: desktop))
    await session.reset("fake/two-steps", seed=0)
    monkeypatch.setattr(type(session.episode.scenario), "evaluate", evaluate)
    last = await session.step(Done())
    await session.slot.close()
    if inside:
        assert (last.terminal, last.reward) == (TerminalState.DESKTOP_KILLED, 0.0)
        assert last.evaluation.status is EvaluationStatus.OK
    else:
        assert last.evaluation.score is None and last.evaluation.status is not EvaluationStatus.OK


VICTIMS = {
    **dict.fromkeys(("desktop-keeper", "bwrap", "desktop-init", "desktop-guest"), signal.SIGKILL),
    **dict.fromkeys(("Xvfb", "openbox", "dbus-daemon"), signal.SIGKILL),
}
"""What the kernel's memory killer, or an operator, may end."""


@pytest.mark.desktop
@pytest.mark.parametrize(("victim", "number"), [*VICTIMS.items(), ("Xvfb", signal.SIGTERM)])
async def test_what_the_host_ends_is_lost_without_a_score(cluster, victim, number):
    marker = f"{os.getpid()}.{len(victim)}{number}"
    async with cluster.client().session() as session:
        await session.reset(task(f"exec sleep {marker}"), seed=0, max_steps=1000, desktop=SIZE)
        while not (pids := [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if runs(path, marker)]):
            assert (await session.step(Move(5, 5))).terminal is None
        os.kill(relative(int(pids[0].name), victim), number)
        last = await played(session)
        assert last.terminal is TerminalState.ENV_ERROR
        assert last.evaluation.score is None and lost_by(last.terminal, last.evaluation) == "environment"


def relative(pid, name):
    """The process of a name among those above a program of a desktop, and what these have started."""
    while name_of(pid) != "systemd" and pid > 1:
        started = [child for child in descendants(pid) if name_of(child) == name]
        if name_of(pid) == name or started:
            return pid if name_of(pid) == name else started[0]
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])  # its parent
    raise AssertionError(f"there is no {name}")


@pytest.mark.desktop
async def test_a_browser_that_the_host_ends_is_lost_without_a_score(cluster):
    async with cluster.client().session() as session:
        began = await session.reset("miniwob/click-test", seed=0)
        assert began.terminal is None, began.evaluation
        keepers = [pid for pid in descendants(cluster.pid) if name_of(pid) == "desktop-keeper"]
        browsers = [child for pid in keepers for child in descendants(pid) if name_of(child).startswith("chrom")]
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in browsers}
        first = next(pid for pid, parent in parents.items() if name_of(parent) == "desktop-guest")
        os.kill(first, signal.SIGKILL)
        last = await played(session)
        assert last.terminal is TerminalState.ENV_ERROR and last.evaluation.score is None, last.evaluation


WAYS_AROUND = """
import ctypes, fcntl, os, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
xvfb = int(os.popen("pgrep Xvfb").read())
def tried(call):
    try:
        return call()
    except (OSError, ValueError) as error:
        return type(error).__name__
reader, writer = os.pipe()
print(tried(lambda: fcntl.fcntl(reader, 10, 9)))
for name in ("CPU", "NOFILE", "FSIZE", "AS", "NPROC", "STACK", "DATA", "MEMLOCK", "SIGPENDING", "RTTIME"):
    print(tried(lambda: resource.prlimit(xvfb, getattr(resource, "RLIMIT_" + name), (1, 1))))
print(resource.prlimit(0, resource.RLIMIT_CPU)[0] != 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))
print(resource.getrlimit(resource.RLIMIT_FSIZE)[0], resource.prlimit(xvfb, resource.RLIMIT_FSIZE)[0] != 9)
"""


@pytest.mark.desktop
async def test_there_is_no_way_to_have_the_kernel_send_the_signal():
    desktop = make_desktop(DesktopSpec(**SIZE))
    await desktop.start()
    try:
        done = await desktop.execute(["python3", "-c", WAYS_AROUND])
        assert done.stdout.split() == [*[b"PermissionError"] * 11, b"True", b"9", b"True"], done
    finally:
        await desktop.stop()


SENT = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
xvfb = int(os.popen("pgrep Xvfb").read())
thread = int(sorted(os.listdir(f"/proc/{xvfb}/task"))[-1])
WAY
"""


@pytest.mark.desktop
@pytest.mark.parametrize(
    "way",
    [
        "os.kill(thread, 9)", "os.killpg(xvfb, 9)", "signal.pidfd_send_signal(os.pidfd_open(xvfb), 9)",
        "libc.syscall(200, thread, 9, 0, 0, 0, 0)", "libc.syscall(234, xvfb, thread, 9, 0, 0, 0)",
        "libc.syscall(62, xvfb, (7 << 32) | 9, 0, 0, 0, 0)",
        "libc.prctl(4, 0, 0, 0, 0); signal.pidfd_send_signal(os.pidfd_open(xvfb), 9)",
    ],
)  # fmt: skip
async def test_every_way_to_send_a_signal_is_noticed(way):
    desktop = make_desktop(DesktopSpec(**SIZE))
    await desktop.start()
    try:
        with contextlib.suppress(DesktopError):
            assert not (await desktop.execute(["python3", "-c", SENT.replace("WAY", way)])).stderr
        async with asyncio.timeout(10):
            await desktop.wait_until_ended()
        assert desktop.killed
    finally:
        await desktop.stop()


@pytest.mark.parametrize(
    ("name", "code", "sent", "inside"),
    [
        ("xvfb", -9, [(7, 9)], True),
        ("xvfb", -9, [], False),
        ("xvfb", -9, [(8, 9), (7, 15)], False),
        ("xvfb", -9, [(None, 9)], True),  # to any, or to one that could not be seen
        ("xvfb", -11, [], True),  # it crashed
        ("xvfb", 1, [], True),
        ("xvfb", 0, [], False),  # as after SIGTERM, which nobody inside has sent
        ("xvfb", 0, [(7, 15)], True),
        ("openbox", 0, [], True),  # `openbox --exit`
        ("browser", -9, [], False),
    ],
)
def test_who_ended_a_program_is_read_from_the_signals_that_were_sent(name, code, sent, inside):
    signals = first_process.Signals()
    signals.sent.update(sent)
    wanted = first_process.ENDED_INSIDE if inside else first_process.ENDED_OUTSIDE
    assert first_process.ended_by(7, name, code, signals) == wanted


def test_a_refused_call_ends_no_desktop_when_the_host_s_disk_is_full(monkeypatch):
    signals = first_process.Signals()
    full = os.open("/dev/full", os.O_WRONLY)
    recorder = first_process.Recorder(-1, {"101": "ptrace"}, {}, full, signals)
    monkeypatch.setattr(first_process.os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    recorder.note(os.getpid(), 101)
    recorder.note(os.getpid(), 101)
    os.close(full)
    assert len(recorder.seen) == 1


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"memory.events": "oom 2\noom_kill 1\n"}, True),
        ({"memory.events": "oom 0\noom_kill 1\n"}, False),  # the machine was short of memory, not the desktop
        ({"memory.events": "oom 2\noom_kill 0\n"}, False),
        (
            {
                "memory.oom_control": "under_oom 0\noom_kill 1\n",
                "memory.limit_in_bytes": "300000000\n",
                "memory.max_usage_in_bytes": "299999999\n",
            },
            True,
        ),
        (
            {
                "memory.oom_control": "under_oom 0\noom_kill 1\n",
                "memory.limit_in_bytes": "300000000\n",
                "memory.max_usage_in_bytes": "90000000\n",
            },
            False,
        ),
        ({}, False),
    ],
)
def test_the_group_s_own_counters_tell_whose_memory_was_short(tmp_path, files, own):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert ControlGroups((tmp_path,)).short_of_own_memory() is own


@pytest.mark.desktop
async def test_a_desktop_goes_before_its_keeper_and_cannot_change_that():
    desktop = make_desktop(DesktopSpec(**SIZE))
    await desktop.start()
    try:
        lower = "for n in 0 -1000 300; do echo $n > /proc/self/oom_score_adj; done; cat /proc/self/oom_score_adj"
        own = int((await desktop.execute(["sh", "-c", lower])).stdout)
        keeper, server = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (desktop.keeper_pid, "self"))
        assert own == 500 and server <= keeper < own
    finally:
        await desktop.stop()


def runs(path, marker):
    try:
        return path.read_bytes() == f"sleep\0{marker}\0".encode()
    except OSError:
        return False  # it has ended


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("states", "busy", "inside"),
    [
        ([("Xvfb", "T"), ("sh", "S")], (100, 0), True),  # stopped: nobody else could
        ([("Xvfb", "S"), ("python3", "S")], (1, 0), True),  # taken by a client, on a machine that has time
        ([("Xvfb", "S"), ("python3", "S")], (40, 0), True),  # by a client; a busy machine keeps nobody waiting here
        ([("Xvfb", "S"), ("chrome", "R")], (40, 0), False),  # others keep the machine busy
        ([("Xvfb", "D")], (30, 10), False),  # and its disk
        ([("Xvfb", "S"), ("sh", "D")], (40, 1), True),  # nobody else waits for a disk: it waits for its own child
        ([("Xvfb", "S"), ("sh", "R", True)], (40, 0), True),  # it leaves the cores to others
        ([("Xvfb", "S"), *[("sh", "R")] * 60], (61, 0), True),  # its own programs do
        ([("Xvfb", "R")], (30, 0), False),
        ([("Xvfb", "R"), *[("sh", "R")] * 60], (81, 0), True),  # its own are three of four, on a busy machine too
        ([("Xvfb", "R"), *[("chrome", "R")] * 20], (41, 0), False),
    ],
)
def test_who_holds_a_desktop_up(states, busy, inside):
    delay = delay_of([ProcessState(*state) for state in states], Busy(*busy), 4)
    assert (delay is not Delay.MACHINE) is inside


def test_an_error_from_inside_crosses_as_one():
    from dart_gym.desktops.keeper.keeper_messages import decode_error, encode_error

    assert type(decode_error(encode_error(DesktopKilledError("x")))) is DesktopKilledError


def test_a_server_s_metrics_tell_both_apart():
    metrics = Metrics()
    for terminal in ("desktop_killed", "desktop_killed", "env_error", "done"):
        result = {"timings": {}, "terminal": terminal, "evaluation": ["ok", 0.0, "", ""]}
        metrics.record("step", 0.1, frames.Reply(1, result))
    text = render(list(metrics.families())).decode()
    assert 'dart_gym_episodes_ended_total{evaluation="ok",terminal="desktop_killed"} 2.0' in text
    assert 'dart_gym_episodes_broken_share{by="desktop"} 0.5' in text
    assert 'dart_gym_episodes_broken_share{by="environment"} 0.25' in text
