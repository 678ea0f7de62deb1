"""Breaking the desktop is a failure of who acts in it, with a score of 0; what the host breaks is lost, without one."""

import asyncio
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
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.keeper.held_up import ProcessState, is_own_doing
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
    monkeypatch.setattr(type(session._episode.scenario), "evaluate", evaluate)
    last = await session.step(Done())
    await session._slot.close()
    if inside:
        assert (last.terminal, last.reward) == (TerminalState.DESKTOP_KILLED, 0.0)
        assert last.evaluation.status is EvaluationStatus.OK
    else:
        assert last.evaluation.score is None and last.evaluation.status is not EvaluationStatus.OK


@pytest.mark.desktop
@pytest.mark.parametrize("victim", ["desktop-keeper", "bwrap"])
async def test_what_the_host_ends_is_lost_without_a_score(cluster, victim):
    marker = f"{os.getpid()}.{len(victim)}"
    async with cluster.client().session() as session:
        await session.reset(task(f"exec sleep {marker}"), seed=0, max_steps=1000, desktop=SIZE)
        while not (pids := [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if runs(path, marker)]):
            assert (await session.step(Move(5, 5))).terminal is None
        pid = int(pids[0].name)
        while name_of(pid) != victim:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])  # its parent
        os.kill(pid, signal.SIGKILL)
        last = await played(session)
        assert last.terminal is TerminalState.ENV_ERROR
        assert last.evaluation.score is None and lost_by(last.terminal, last.evaluation) == "environment"


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
    ("states", "load", "inside"),
    [
        ([("Xvfb", "T"), ("sh", "S")], 100.0, True),  # stopped: nobody else could
        ([("Xvfb", "S"), ("python3", "S")], 1.0, True),  # taken by a client, on a machine that has time
        ([("Xvfb", "S")], 40.0, False),  # others keep the machine busy
        ([("Xvfb", "S"), *[("sh", "R")] * 60], 61.0, True),  # its own programs do
        ([("Xvfb", "R")], 30.0, False),
    ],
)
def test_who_holds_a_desktop_up(states, load, inside):
    assert is_own_doing([ProcessState(*state) for state in states], load, 4) is inside


def test_an_error_from_inside_crosses_as_one():
    from dart_gym.desktops.keeper.keeper_messages import decode_error, encode_error

    assert type(decode_error(encode_error(DesktopKilledError("x")))) is DesktopKilledError


def test_a_server_s_metrics_tell_both_apart():
    metrics = Metrics()
    for terminal in ("desktop_killed", "desktop_killed", "env_error", "done"):
        result = {"timings": {}, "terminal": terminal, "evaluation": ["ok", 0.0, "", ""]}
        metrics.record("step", 0.1, frames.Reply(1, result))
    text = render(list(metrics._families())).decode()
    assert 'dart_gym_episodes_ended_total{evaluation="ok",terminal="desktop_killed"} 2.0' in text
    assert 'dart_gym_episodes_broken_share{by="desktop"} 0.5' in text
    assert 'dart_gym_episodes_broken_share{by="environment"} 0.25' in text
