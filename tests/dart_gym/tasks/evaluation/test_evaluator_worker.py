"""The evaluator worker: OSWorld's scores, in a sandbox, and each way to break it is an error that names the cause."""

from __future__ import annotations

import http.server
import io
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
import wave
from pathlib import Path

import pytest
from PIL import Image

from dart_gym.core import operation_deadline
from dart_gym.core.errors import DesktopStateError, EvaluationFailure
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.desktops.keeper import held_up, patience
from dart_gym.desktops.keeper.held_up import Delay
from dart_gym.tasks.evaluation import evaluator_environment, evaluator_worker, getters
from dart_gym.tasks.evaluation.evaluator import evaluate
from dart_gym.tasks.setup import command_steps
from tests.helpers.busy_machine import busy_machine

pytestmark = pytest.mark.desktop

HELLO = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "cat ~/a.txt", "shell": True},
    "expected": {"type": "rule", "rules": {"expected": "hello\n"}},
}
NOTHING = {**HELLO, "result": {"type": "vm_file", "path": "/home/user/none", "dest": "none"}}


@pytest.fixture
async def desktop():
    machine = make_desktop(DesktopSpec(width=320, height=240))
    await machine.start()
    await machine.write_file("/home/user/a.txt", b"hello\n")
    yield machine
    await machine.stop()


def file_of(name: str) -> dict:
    return {"type": "vm_file", "path": f"/home/user/{name}", "dest": name}


async def score_program(desktop, program: str, **options):
    """Have a metric of OSWorld import a file that the agent left behind."""
    await desktop.write_file("/home/user/agent.py", program.encode())
    suite = "import sys\nsys.path.insert(0, '.')\ndef test():\n    import agent\n    return agent.ok\n"
    await desktop.write_file("/home/user/suite.py", suite.encode())
    evaluator = {
        "func": "check_python_file_by_test_suite",
        "result": file_of("agent.py"),
        "expected": file_of("suite.py"),
    }
    return await evaluate(desktop, evaluator, TerminalState.DONE, **options)


async def score(desktop, evaluator, terminal=TerminalState.DONE, **options) -> float | None:
    evaluation = await evaluate(desktop, evaluator, terminal, official=True, **options)
    assert evaluation.status is EvaluationStatus.OK, evaluation
    assert evaluation.evaluator == "desktop-env/1.0.2"
    return evaluation.score


@pytest.mark.thorough
async def test_the_rules_are_osworlds(desktop):
    both = {key: [HELLO[key], NOTHING[key]] for key in ("func", "result", "expected")}
    assert await score(desktop, HELLO) == 1.0
    assert await score(desktop, NOTHING) == 0.0
    assert await score(desktop, {**both, "conj": "and"}) == 0.0
    assert await score(desktop, {**both, "conj": "or"}) == 1.0
    assert await score(desktop, HELLO, TerminalState.FAIL) == 0.0
    assert await score(desktop, {"func": "infeasible"}, TerminalState.FAIL) == 1.0
    assert await score(desktop, {"func": "infeasible"}) == 0.0


async def test_scores_may_be_fractional(desktop):
    await desktop.write_file("/home/user/b.txt", b"help\n")
    compare = {"func": "fuzzy_match", "result": HELLO["result"], "expected": {"type": "rule", "rules": {}}}
    assert (await evaluate(desktop, compare, TerminalState.DONE)).status is EvaluationStatus.EVALUATION_ERROR
    lines = {"func": "diff_text_file", "result": file_of("a.txt"), "expected": file_of("b.txt")}
    await desktop.write_file("/home/user/a.txt", b"one\ntwo\nthree\n")
    await desktop.write_file("/home/user/b.txt", b"one\ntwo\nfour\n")
    assert 0.0 < await score(desktop, lines) < 1.0


async def test_output_of_postconfig_reaches_the_getters(desktop):
    step = {"type": "execute", "parameters": {"command": ["echo", "kept"], "stdout": "kept.txt"}}
    await desktop.write_file("/home/user/b.txt", b"kept\n")
    evaluator = {
        "postconfig": [step],
        "func": "compare_text_file",
        "result": {"type": "cache_file", "path": "kept.txt"},
        "expected": file_of("b.txt"),
    }
    assert await score(desktop, evaluator) == 1.0


async def test_expected_files_come_from_the_download_cache(desktop):
    async def fetch(url: str, path: Path) -> None:
        path.write_text({"https://hub/gold.txt": "hello\n"}[url])

    gold = {"type": "cloud_file", "path": "https://hub/gold.txt", "dest": "gold.txt"}
    evaluator = {"func": "compare_text_file", "result": file_of("a.txt"), "expected": gold}
    assert await score(desktop, evaluator, fetch=fetch) == 1.0
    evaluation = await evaluate(desktop, evaluator, TerminalState.DONE)
    assert evaluation.status is EvaluationStatus.EVALUATION_ERROR and "https://hub/gold.txt" in evaluation.detail


def tone(pitch: float) -> bytes:
    """A second of sound."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22050)
        file.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(n * pitch))) for n in range(22050)))
    return buffer.getvalue()


@pytest.mark.thorough
async def test_metrics_of_sound_and_pictures_work(desktop):
    picture = io.BytesIO()
    Image.new("RGB", (60, 40), "red").save(picture, "PNG")
    for name, data in {"a.wav": tone(0.1), "b.wav": tone(0.1), "a.png": picture.getvalue()}.items():
        await desktop.write_file(f"/home/user/{name}", data)
    sound = {"func": "compare_audios", "result": file_of("a.wav"), "expected": file_of("b.wav")}
    assert await score(desktop, sound) == pytest.approx(1.0)
    await desktop.write_file("/home/user/b.wav", tone(0.5))
    assert await score(desktop, sound) < 1.0
    looks = {"func": "compare_images", "result": file_of("a.png"), "expected": file_of("a.png")}
    assert await score(desktop, looks) == 1.0


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        ({**HELLO, "func": "compare_image_text"}, "easyocr"),
        ({**HELLO, "func": "no_such_metric"}, "no_such_metric"),
        ({**HELLO, "result": {"type": "no_such_getter"}}, "no_such_getter"),
        ({**HELLO, "result": {"type": "googledrive_file"}}, "pydrive"),
        ({**HELLO, "result": {"type": "cache_file", "path": "none"}}, "AssertionError"),
        ({**HELLO, "func": "check_auto_saving_time"}, "minutes"),
        ({**HELLO, "postconfig": [{"type": "no_such_step", "parameters": {}}]}, "no_such_step"),
    ],
)
async def test_what_cannot_be_computed_is_an_error(desktop, evaluator, reason):
    evaluation = await evaluate(desktop, evaluator, TerminalState.DONE, official=True)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.EVALUATION_ERROR, None), evaluation
    assert reason in evaluation.detail


async def test_a_player_that_the_agent_has_closed_is_worth_0(desktop):
    closed = {**HELLO, "result": {"type": "vlc_playing_info", "dest": "s.xml"}}
    assert await score(desktop, closed) == 0.0


def is_worth(evaluation, score: float) -> bool:
    return (evaluation.status, evaluation.score) == (EvaluationStatus.OK, score)


def is_worth_0(evaluation) -> bool:
    """Whether what the agent left, which a metric runs, has no way to void the episode."""
    return is_worth(evaluation, 0.0)


@pytest.mark.parametrize("busy", [False, True])
async def test_a_hang_ends_at_the_deadline(desktop, monkeypatch, busy):
    monkeypatch.setattr(patience, "what_delays", lambda roots, **_: Delay.MACHINE if busy else Delay.ITSELF)
    monkeypatch.setattr(operation_deadline, "LONGEST_EXTENSION_S", 0.0)
    started = time.monotonic()
    evaluation = await score_program(desktop, "while True: pass", timeout=4.0)
    assert "took longer than 4 s" in evaluation.detail and time.monotonic() - started < 15
    assert is_worth_0(evaluation) is not busy, "a machine that is busy may be what is slow"
    assert busy is (evaluation.status is EvaluationStatus.EVALUATION_ERROR)


@pytest.mark.thorough
async def test_what_keeps_a_processor_busy_is_no_failure_of_a_busy_machine(desktop, monkeypatch):
    """Else a document that is read for ever would have each failed episode left out, where many desktops run."""
    monkeypatch.setattr(patience, "what_delays", lambda roots, **_: Delay.MACHINE)
    monkeypatch.setattr(patience, "ENOUGH_S", 0.5)
    evaluation = await score_program(desktop, "while True: pass", timeout=12.0)
    assert "took longer" in evaluation.detail and is_worth_0(evaluation), evaluation


@pytest.fixture
def others(monkeypatch):
    """Other programs that keep all cores busy; as many of them as a test can afford count as too many."""
    monkeypatch.setattr(held_up, "OVERLOAD", 0.5)
    monkeypatch.setattr(operation_deadline, "LOOK_S", 0.5)
    with busy_machine(len(os.sched_getaffinity(0)) + 1):
        yield


@pytest.mark.thorough
async def test_on_a_busy_machine_an_evaluation_goes_on_until_it_has_had_its_time(desktop, others, monkeypatch):
    """What ends has its score, and what does not is worth 0, but not before it has gone on."""
    moves, imported, require_ok = [], [], evaluator_worker.EvaluatorWorker.require_ok

    def replied(reply, where):
        if not where:  # after its imports, which are no part of it
            imported.append(len(moves))
            moves.clear()
        return require_ok(reply, where)

    def moved(seconds):
        moves.append(seconds)
        if endless and imported and len(moves) == 2:
            monkeypatch.setattr(patience, "ENOUGH_S", 0.0)  # by now it has had as much as it needs
        return operation_deadline.keep_open(seconds)

    monkeypatch.setattr(evaluator_worker, "keep_open", moved)
    monkeypatch.setattr(evaluator_worker.EvaluatorWorker, "require_ok", staticmethod(replied))
    ends = "import time; ends = time.process_time() + 0.8\nwhile time.process_time() < ends: pass\nok = True"
    for program, endless in ((ends, False), ("while True: pass", True)):
        imported.clear()
        evaluation = await score_program(desktop, program, timeout=0.5)
        assert is_worth(evaluation, 0.0 if endless else 1.0) and imported[0] + len(moves) >= 1 + endless, evaluation
    assert "took longer" in evaluation.detail


@pytest.mark.thorough
async def test_a_machine_that_never_has_time_for_an_evaluation_is_to_blame(desktop, others, monkeypatch):
    monkeypatch.setattr(operation_deadline, "LONGEST_EXTENSION_S", 3.0)
    evaluation = await score_program(desktop, "while True: pass", timeout=2.0)
    assert evaluation.status is EvaluationStatus.EVALUATION_ERROR and "took longer" in evaluation.detail, evaluation


ENDLESS = "while :; do :; done"


@pytest.mark.thorough
async def test_a_desktop_that_an_evaluation_waits_for_has_had_its_time_too(desktop, others, monkeypatch):
    """A command of a getter that the agent has made endless, while others keep the machine busy."""
    monkeypatch.setattr(patience, "ENOUGH_S", 2.0)
    used = patience.used_by
    monkeypatch.setattr(evaluator_worker, "used_by", lambda roots: used(roots) * (desktop.keeper_pid in roots))
    endless = {**HELLO, "result": {"type": "vm_command_line", "command": ENDLESS, "shell": True}}
    evaluation = await evaluate(desktop, endless, TerminalState.DONE, official=True, timeout=2.0)
    assert is_worth_0(evaluation), evaluation


@pytest.mark.thorough
@pytest.mark.parametrize(("where", "enough"), [("getter", True), ("getter", False), ("script", True), ("until", True)])
async def test_a_command_that_is_endless_is_the_agent_s_once_it_has_had_its_time(
    desktop, others, monkeypatch, where, enough
):
    """Of a built-in getter, and of steps: each has a time of its own, which a busy machine moves, but not for ever."""
    monkeypatch.setattr(patience, "ENOUGH_S", 1.5 if enough else 1e9)
    monkeypatch.setattr(operation_deadline, "LONGEST_EXTENSION_S", 60.0 if enough else 2.0)
    monkeypatch.setattr(getters, "EXECUTE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(command_steps, "EXECUTE_TIMEOUT_S", 1.0)
    evaluator, command = dict(HELLO), {"command": ENDLESS, "shell": True}
    match where:
        case "getter":
            evaluator["result"] = {"type": "vm_command_line", **command}
        case "script":
            evaluator["postconfig"] = [{"type": "run_script", "parameters": {**command, "seconds": 1.0}}]
        case "until":
            await desktop.launch(["sh", "-c", ENDLESS])
            waits = {"command": ["false"], "until": {"returncode": 0}}
            evaluator["postconfig"] = [{"type": "execute", "parameters": waits}]
    evaluation = await evaluate(desktop, evaluator, TerminalState.DONE)
    wanted = (EvaluationStatus.OK, 0.0) if enough else (EvaluationStatus.ENVIRONMENT_ERROR, None)
    assert (evaluation.status, evaluation.score) == wanted, evaluation


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os; os._exit(7)", "status 7"),
        ("import os; [os.write(n, b'x' * 99 + b'\\n') for n in range(1, 9) if n != 2]", "no JSON"),
    ],
)
async def test_a_crash_is_named(desktop, program, said):
    evaluation = await score_program(desktop, program)
    assert is_worth_0(evaluation) and said in evaluation.detail, evaluation


@pytest.mark.thorough
async def test_too_much_memory_is_worth_0(desktop, monkeypatch):
    monkeypatch.setattr(evaluator_worker, "MEMORY_BYTES", 200 << 20)
    command = "head -c 60000000 /dev/zero | tr '\\0' a"
    much = {**HELLO, "result": {"type": "vm_command_line", "command": command, "shell": True}}
    assert is_worth_0(await evaluate(desktop, much, TerminalState.DONE, official=True))


HOARDING = """
import json, resource
from dart_gym.tasks.evaluation import evaluator_worker_main as main, metric_control

def metric(state):
    kept = [bytes(1 << 20) for _ in range(250)]
    while state:
        kept.append(bytes(1 << 20))
    return 0.0

main.neighbours["metric_control"] = metric_control
main.find_function = lambda kind, name: metric
worker = object.__new__(main.Worker)
worker.states, worker.get = [], lambda config: "a document that becomes large"
resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))
request = {"op": "check", "func": "f", "result": {"type": "vm_file"}, "expected": None, "options": {}, "conj": "and"}
print(json.dumps(worker.answer(request)))
"""


def test_what_a_metric_has_read_leaves_room_for_its_control():
    """Else a small archive that becomes large would be an error of the evaluator, and void the episode."""
    found = subprocess.run([sys.executable, "-c", HOARDING], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(found.stdout)["score"] == 0.0, found


async def test_the_agents_files_run_inside_the_sandbox_only(desktop, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("of this machine")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    program = f"""
import os, socket, subprocess, urllib.request
found = []
if os.path.exists({str(secret)!r}): found.append("a file of this machine")
if os.path.exists({os.path.expanduser("~/.bashrc")!r}): found.append("the home directory")
if any(int(name) == {os.getpid()} for name in os.listdir("/proc") if name.isdigit()): found.append("our process")
if len([name for name in os.listdir("/proc") if name.isdigit()]) > 5: found.append("other processes")
try:
    socket.create_connection(("127.0.0.1", {server.server_address[1]}), 2)
    found.append("a port of this machine")
except OSError: pass
try:
    open("/usr/bin/x", "w"); found.append("write access")
except OSError: pass
subprocess.Popen(["setsid", "sleep", "98765.4321"])
if found: os._exit(9)
ok = True
"""
    evaluation = await score_program(desktop, program)
    server.shutdown()
    server.server_close()
    assert evaluation.score == 1.0, evaluation
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"98765.4321" in command for command in commands)


async def test_a_missing_environment_names_the_command(desktop, monkeypatch, tmp_path):
    monkeypatch.setenv(evaluator_environment.VARIABLE, str(tmp_path / "none"))
    evaluation = await evaluate(desktop, HELLO, TerminalState.DONE, official=True)
    assert evaluation.status is EvaluationStatus.EVALUATION_ERROR
    assert "dart-gym evaluator install" in evaluation.detail


async def test_nothing_is_left_of_an_evaluation(desktop, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:  # a short path, and nobody else's
        monkeypatch.setattr(tempfile, "tempdir", folder)
        await score(desktop, HELLO)
        await score_program(desktop, "import os; os._exit(7)")
        assert list(Path(folder).iterdir()) == []


def test_memory_that_is_used_up_by_what_was_read_is_no_error_of_the_evaluator():
    """The control may find none either: a parser's memory does not always come back."""
    reply = {"error": "MemoryError", "message": "it needs more memory"}
    with pytest.raises(DesktopStateError, match="metric compare_table: it needs"):
        evaluator_worker.EvaluatorWorker.require_ok(reply, "metric compare_table: ")
    with pytest.raises(EvaluationFailure):
        evaluator_worker.EvaluatorWorker.require_ok(reply, "")
