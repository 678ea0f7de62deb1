"""An agent that fails cannot void its episode, and what the machine breaks while it is judged is no score of 0."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from dart_gym.core import operation_deadline
from dart_gym.core.actions import Done
from dart_gym.core.errors import DesktopError, DesktopStateError, DesktopTimeoutError, StuckProgramError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.confinement import resource_limits
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.keeper import held_up, patience
from dart_gym.desktops.keeper.held_up import Delay
from dart_gym.sessions.session import Session
from dart_gym.sessions.slot import Slot
from dart_gym.tasks.evaluation import evaluator_worker, getters
from dart_gym.tasks.evaluation.blame import of_the_agent
from dart_gym.tasks.evaluation.evaluator import evaluate
from dart_gym.tasks.evaluation.foreign_reward import read_end, run_reward
from dart_gym.tasks.evaluation.metric_control import works_without_the_agent
from dart_gym.tasks.evaluation.metrics import METRICS
from dart_gym.tasks.evaluation.watched_desktop import watch
from tests.helpers.judging import FILE, SAME, is_worth_0

pytestmark = pytest.mark.security
SIZE = {"width": 320, "height": 240}
SPOILED = {
    "pipe": "mkfifo ~/result",
    "folder": "mkdir ~/result",
    "loop": "ln -s result ~/result",
    "long loop": "ln -s b ~/result; ln -s result ~/b",
    "unreadable": "echo right > ~/result; chmod 0 ~/result",
    "below a file": "rm -rf ~/result; ln -s right/x ~/result",
    "device": "ln -s /dev/zero ~/result",
    "socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/home/user/result\")'",
    "memory": "(sleep 1000 & ln -s /proc/$!/mem ~/result) > /dev/null 2>&1",
    "too large": "truncate -s 300M ~/result",
    "no text": "printf '\\377\\376right' > ~/result",
}


def spoilt(how: str) -> list[str]:
    return ["sh", "-c", f"cd ~; rm -rf result b; echo right > right; {SPOILED[how]}"]


@pytest.mark.desktop
async def test_a_result_that_cannot_be_read_is_none(desktop):
    for how in SPOILED:
        await desktop.execute(spoilt(how))
        assert is_worth_0(evaluation := await evaluate(desktop, SAME, TerminalState.DONE)), (how, evaluation)
    await desktop.execute(["sh", "-c", "cd ~; rm -rf result; echo right > result"])
    assert (await evaluate(desktop, SAME, TerminalState.DONE)).score == 1.0


@pytest.mark.desktop
@pytest.mark.parametrize("how", ["pipe", "too large", "no text"])
async def test_nor_is_it_for_osworld_s_getters(desktop, how):
    await desktop.execute(spoilt(how))
    evaluation = await evaluate(desktop, SAME, TerminalState.DONE, official=True)
    assert is_worth_0(evaluation), evaluation


# Metrics that take for granted that something is there, with what their getter reads.
VLCRC, HISTORY = ".config/vlc/vlcrc", ".config/google-chrome/Default/History"
TAKE_A_FILE = {
    "vlc": ("check_qt_max_volume", {"type": "vlc_config", "dest": "vlcrc"}, {"expected_qt_max_volume": 200}, VLCRC),
    "chrome": (
        *("check_history_deleted", {"type": "history", "dest": "history.sqlite"}),
        *({"type": "keywords", "keywords": ["youtube"]}, HISTORY),
    ),
    "calc": ("compare_conference_city_in_order", {**FILE, "dest": "a.xlsx"}, {"expected": ["Atlanta"] * 21}, "result"),
}


@pytest.mark.desktop
@pytest.mark.parametrize("what", TAKE_A_FILE)
async def test_what_is_removed_or_no_longer_what_it_was_is_worth_0(desktop, what):
    func, result, rules, path = TAKE_A_FILE[what]
    check = {"func": func, "result": result, "expected": {"type": "rule", "rules": rules}}
    for left in ("rm -f $1", "mkdir -p $(dirname $1); printf '\\377\\376' > $1"):
        await desktop.execute(["sh", "-c", f"cd ~; {left}", "sh", path])
        evaluation = await evaluate(desktop, check, TerminalState.DONE, official=True)
        assert is_worth_0(evaluation), evaluation


@pytest.mark.desktop
@pytest.mark.parametrize("official", [False, True])
async def test_an_output_without_end_is_worth_0(desktop, official):
    result = {"type": "vm_command_line", "command": "cat /dev/zero", "shell": True}
    rules = {"type": "rule", "rules": {"expected": "x", "include": ["x"]}}
    for func in ("exact_match", "is_in_list", "check_include_exclude") if not official else ("is_in_list",):
        evaluation = await evaluate(
            desktop, {"func": func, "result": result, "expected": rules}, TerminalState.DONE, official=official
        )
        assert is_worth_0(evaluation), (func, evaluation)


FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        time.sleep(0.001)
"""


@pytest.mark.desktop
async def test_a_desktop_without_room_for_a_process_is_judged(desktop):
    await desktop.write_file("/home/user/right", b"right\n")
    await desktop.launch(["python3", "-c", FORKS])
    with pytest.raises(DesktopStateError):
        async with asyncio.timeout(60):
            while True:
                await desktop.execute(["true"])
    assert await desktop.read_file("/home/user/right") == b"right\n", "it is still answered"
    command = {"type": "vm_command_line", "command": ["cat", "/home/user/right"]}
    checks = [
        SAME,
        {"func": "exact_match", "result": command, "expected": {"type": "rule", "rules": {"expected": "right\n"}}},
        {**SAME, "postconfig": [{"type": "execute", "parameters": {"command": ["sync"]}}]},
    ]
    for check in checks:
        assert is_worth_0(evaluation := await evaluate(desktop, check, TerminalState.DONE)), evaluation


SITE = "/home/user/.local/lib/python3.11/site-packages/usercustomize.py"
ENDS_AS_IF_MISSING = f"mkdir -p {SITE.rpartition('/')[0]}; echo 'import os; os._exit(127)' > {SITE}"


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("left", "command"),
    [
        ("chmod 0 ~", ["sync"]),
        (ENDS_AS_IF_MISSING, ["/usr/bin/python3", "-c", "print(1)"]),
        ("echo 'exit 127' > ~/saves", ["sh", "/home/user/saves"]),
        ("echo 'exit 127' > ~/saves", ["/home/user/saves"]),
        ("rm -f ~/saves", ["/home/user/saves"]),
    ],
)
async def test_a_step_of_postconfig_that_the_agent_s_files_end_is_worth_0(desktop, left, command):
    await desktop.execute(["sh", "-c", f"cd; echo right > right; {left}"])
    check = {**SAME, "postconfig": [{"type": "execute", "parameters": {"command": command}}]}
    assert is_worth_0(evaluation := await evaluate(desktop, check, TerminalState.DONE)), evaluation


HANGS = """
import socket, time
listener = socket.create_server(("127.0.0.1", 8080), backlog=50)
kept = [listener.accept() for _ in range(50)]
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.desktop
async def test_a_program_that_does_not_answer_a_getter_is_worth_0_on_a_busy_machine_too(desktop, monkeypatch):
    monkeypatch.setattr(held_up, "busy_share", lambda stat: held_up.Busy(1000.0, 0.0))
    await desktop.launch(["python3", "-c", HANGS])
    playing = {"type": "vlc_playing_info", "dest": "status.xml"}
    rules = {"type": "rule", "rules": {"type": "file_name", "file_name": "a.mp4"}}
    check = {"func": "is_vlc_playing", "result": playing, "expected": rules}
    evaluation = await evaluate(desktop, check, TerminalState.DONE, official=True, timeout=30.0)
    assert is_worth_0(evaluation) and "took longer than 3" in evaluation.detail, evaluation


@pytest.mark.desktop
@pytest.mark.skipif(not resource_limits.group_places(), reason="without control groups only the machine counts")
async def test_programs_of_a_desktop_that_are_ended_for_memory_explain_no_end_of_the_evaluator(desktop, monkeypatch):
    """The agent's program kills the evaluator that runs it, while others of its desktop use up their memory."""
    ended = itertools.count()
    monkeypatch.setattr(evaluator_worker, "ended_for_memory", lambda vmstat: next(ended))
    await desktop.write_file("/home/user/result", b"import os; os.kill(os.getpid(), 9)")
    program = {**FILE, "dest": "result.py"}
    check = {"func": "check_python_file_by_test_suite", "result": program, "expected": program}
    assert is_worth_0(evaluation := await evaluate(desktop, check, TerminalState.DONE, official=True)), evaluation
    assert "killed by SIGKILL" in evaluation.detail


@pytest.mark.desktop
async def test_a_program_that_the_machine_lacks_is_an_error(desktop):
    check = {**SAME, "postconfig": [{"type": "execute", "parameters": {"command": ["absent-program"]}}]}
    evaluation = await evaluate(desktop, check, TerminalState.DONE)
    assert evaluation.status is EvaluationStatus.EVALUATION_ERROR and "absent-program" in evaluation.detail


@pytest.mark.desktop
@pytest.mark.parametrize("attack", ["kill -9 2", "kill -STOP 2", "pkill -9 Xvfb"])
async def test_who_ends_the_desktop_while_it_is_judged_has_ended_it(cluster, attack):
    waits = f"while ! [ -e /tmp/judged ]; do sleep 0.05; done; {attack}"
    task = {
        "id": "t",
        "instruction": "",
        "config": [{"type": "launch", "parameters": {"command": ["sh", "-c", waits]}}],
        "evaluator": {
            **SAME,
            "postconfig": [
                {"type": "write_file", "parameters": {"path": "/tmp/judged", "text": ""}},
                {"type": "execute", "parameters": {"command": ["sleep", "20"]}},
            ],
        },
        "dart": {},
    }
    async with cluster.client().session() as session:
        assert (await session.reset(task, seed=0, desktop=SIZE)).terminal is None
        last = await session.step(Done())
        assert (last.terminal, last.reward) == (TerminalState.DESKTOP_KILLED, 0.0), last.evaluation
        assert last.evaluation.status is EvaluationStatus.OK


@pytest.mark.desktop
@pytest.mark.parametrize(
    ("left", "program", "score"),
    [
        ("printf '\\377' > ~/a", "print(open('/home/user/a').read())", 0.0),
        ("echo '{' > ~/a", "import json; json.load(open('/home/user/a'))", 0.0),
        ("mkdir ~/a", "open('/home/user/a')", 0.0),
        ("true", "open('/home/user/a')", 0.0),  # it was never made, or deleted
        ("echo 1 > ~/a", "import os\nif os.path.exists('/home/user/a'): os.abort()\nprint('REWARD: 0')", 0.0),
        ("true", "import glob; glob.glob('/home/user/*.txt')[0]", 0.0),  # nothing was made
        ("true", "import os; assert os.path.exists('/home/user/a')", 0.0),
        ("echo 1 > ~/a", "raise KeyError('ours')", None),
        ("echo 1 > ~/a", "open('/nothing/of/the/desktop')", None),
    ],
)
async def test_a_program_that_the_agent_s_files_break_is_worth_0(desktop, tmp_path, left, program, score):
    await desktop.execute(["sh", "-c", left])
    (tmp_path / "reward.py").write_text(program)
    done = await run_reward(desktop, {"type": "python", "url": "reward.py"}, tmp_path)
    assert done.score == score, done
    assert (done.status is EvaluationStatus.OK) == (score is not None)


@pytest.mark.desktop
async def test_the_machine_s_failure_is_not_taken_for_a_missing_file(desktop, monkeypatch):
    async def fails(path):
        raise DesktopError("the server's disk has gone")

    monkeypatch.setattr(desktop, "read_file", fails)
    evaluation = await evaluate(desktop, SAME, TerminalState.DONE, official=True)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.ENVIRONMENT_ERROR, None), evaluation


# --- without a desktop


@pytest.mark.parametrize(
    ("status", "output", "raised", "wanted"),
    [
        (1, "", "IndexError: list index out of range", True),
        (1, "", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", True),
        (1, "", "subprocess.CalledProcessError: Command '['desktop', 'run']' returned non-zero exit status 1.", True),
        (1, "", "TypeError: 'NoneType' object is not subscriptable", True),
        (1, "", "ValueError: invalid literal for int() with base 10: ''", True),
        (1, "", "ValueError: max() arg is an empty sequence", True),
        (0, "REWARD: nan", "", True),
        (0, "", "", True),  # main() returned early
        (3, "", "", True),
        (1, "", "ModuleNotFoundError: No module named 'x'", False),
        (1, "", "NameError: name 'x' is not defined", False),
        (1, "", "TypeError: f() takes 1 positional argument but 2 were given", False),
        (-9, "", "", False),
        (127, "", "", False),
        (0, "REWARD: 2", "", False),
    ],
)
def test_a_program_that_ends_for_want_of_anything_is_no_way_out(status, output, raised, wanted):
    errors = f'Traceback (most recent call last):\n  File "/x/bundle/reward.py", line 3\n{raised}\n' if raised else ""
    ended = read_end("reward.py", "python", status, output, errors)
    assert of_the_agent(ended, ended) is wanted
    assert of_the_agent(ended, None)


@pytest.mark.parametrize(
    ("metric", "state", "others", "options", "agents"),
    [
        ("is_in_list", None, [{"expected": "x"}], {}, True),
        ("compare_text_file", "/nothing", ["/nothing"], {}, True),
        ("exact_match", "x", [{}], {}, False),  # the task lacks what is expected
        ("exact_match", "x", [None], {}, False),
        ("exact_match", "x", [], {}, False),
        ("compare_text_file", "x", ["y"], {"no_such_option": 1}, True),
    ],
)
def test_a_control_tells_whose_failure_a_metric_s_is(metric, state, others, options, agents):
    assert works_without_the_agent(METRICS[metric], others, options) is agents


@pytest.mark.desktop
@pytest.mark.parametrize("own", [True, False])
async def test_a_program_that_does_not_end_is_the_agent_s_on_a_machine_that_has_time(desktop, monkeypatch, own):
    monkeypatch.setattr(patience, "what_delays", lambda roots, **_: Delay.ITSELF if own else Delay.MACHINE)
    with pytest.raises(DesktopTimeoutError, match="'sleep' did not end within 0.2 s and was killed") as caught:
        await desktop.execute(["sleep", "60"], timeout=0.2)
    assert isinstance(caught.value, StuckProgramError) is own is isinstance(caught.value, DesktopStateError)
    assert desktop.alive


HIDES = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(10):
    if os.fork() == 0:
        while time.process_time() < 0.1: pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
"""


@pytest.mark.desktop
@pytest.mark.skipif(not resource_limits.group_places(), reason="without control groups only live processes count")
async def test_a_desktop_cannot_hide_the_time_of_a_processor_that_it_has_had(desktop):
    """Children whose parent does not wait for them are counted nowhere in /proc when they have ended."""
    roots = {desktop.keeper_pid}
    before = patience.used_by(roots)
    assert (await desktop.execute(["python3", "-c", HIDES])).returncode == 0
    assert 1.0 <= patience.used_by(roots) - before < 10.0


WAITS = {
    "yields": "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass",
    "nicer": "import os; os.nice(5)\nwhile True: pass",
    "vfork": "import ctypes, time; ctypes.CDLL(None).vfork() or time.sleep(1000)",
    "sleeps": "import time; time.sleep(1000)",
    "stops": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}


@pytest.mark.desktop
@pytest.mark.parametrize("how", WAITS)
async def test_a_program_that_wants_no_core_is_late_by_itself_on_a_busy_machine_too(desktop, monkeypatch, how):
    """Else it would take so little of a processor that an evaluation waits for it until the machine is to blame."""
    monkeypatch.setattr(held_up, "busy_share", lambda stat: held_up.Busy(1000.0, 0.0))
    monkeypatch.setattr(operation_deadline, "LOOK_S", 0.5)
    monkeypatch.setattr(getters, "EXECUTE_TIMEOUT_S", 0.5)
    result = {"type": "vm_command_line", "command": ["python3", "-c", WAITS[how]]}
    check = {"func": "exact_match", "result": result, "expected": {"type": "rule", "rules": {"expected": "x"}}}
    async with asyncio.timeout(20):
        assert is_worth_0(evaluation := await evaluate(desktop, check, TerminalState.DONE)), evaluation


class SlowDesktop(FakeDesktop):
    """One that knows why it is slow."""

    own = True

    async def holds_up(self):
        return self.own

    def judge(self, enough_s=None):
        return self

    def begin(self):
        pass

    def had_its_time(self):
        return self.own


@pytest.mark.parametrize(("own", "elsewhere"), [(True, False), (False, False), (True, True)])
async def test_a_deadline_that_passes_while_the_desktop_is_judged(monkeypatch, own, elsewhere):
    monkeypatch.setattr(operation_deadline, "LONGEST_EXTENSION_S", 0.0)
    desktop = SlowDesktop(DesktopSpec("fake"))
    desktop.own = own

    async def never(scenario, judged, *_):
        if elsewhere:
            with judged.elsewhere():
                await asyncio.sleep(60)
        await asyncio.sleep(60)

    session = Session(Slot("0", lambda spec: desktop))
    await session.reset("fake/two-steps", seed=0)
    monkeypatch.setattr(type(session.episode.scenario), "evaluate", never)
    last = await session.step(Done(), deadline_s=0.05)
    await session.slot.close()
    killed = own and not elsewhere
    assert last.terminal is (TerminalState.DESKTOP_KILLED if killed else TerminalState.ENV_ERROR)
    assert (last.evaluation.score == 0.0) is killed


@pytest.mark.desktop
async def test_a_document_that_is_gone_is_the_agent_s(desktop):
    """Beside a path, a task may name it as in the home directory."""
    await desktop.execute(["sh", "-c", "echo right > ~/right; cp ~/right ~/result"])
    for path in ("~/report.odt", "report.odt"):
        step = {"type": "open", "parameters": {"path": path}}
        evaluation = await evaluate(desktop, {**SAME, "postconfig": [step]}, TerminalState.DONE)
        assert is_worth_0(evaluation) and "report.odt" in evaluation.detail, evaluation


@pytest.mark.parametrize("error", [FileExistsError("a folder is there"), DesktopStateError("no room")])
async def test_a_step_of_postconfig_that_the_desktop_refuses_is_worth_0(monkeypatch, error):
    desktop = FakeDesktop(DesktopSpec("fake"))
    await desktop.start()

    async def refuses(*_, **__):
        raise error

    monkeypatch.setattr(desktop, "write_file", refuses)
    step = {"type": "write_file", "parameters": {"path": "/home/user/x", "text": "x"}}
    assert is_worth_0(await evaluate(desktop, {**SAME, "postconfig": [step]}, TerminalState.DONE))


async def test_what_is_watched_is_noted_once_and_passed_on(monkeypatch):
    desktop = FakeDesktop(DesktopSpec("fake"))
    await desktop.start()
    watched = watch(desktop)
    assert watch(watched) is watched and watched.spec is desktop.spec
    with pytest.raises(FileNotFoundError):
        await watched.read_file("/nothing")
    watched.check()
    desktop.crash()
    with pytest.raises(DesktopError):
        await watched.read_file("/nothing")
    with pytest.raises(DesktopError):
        watched.check()
