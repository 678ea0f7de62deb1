"""Programs that come with tasks: reward.py and check.sh in the evaluator's sandbox, set-up inside the desktop."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import os
import re
import tempfile
import threading
from pathlib import Path

import gymnasium
import pytest

import dart_gym  # noqa: F401  registers the environments
from dart_gym.core.errors import EvaluationFailure, TaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.catalog.registry import get_task, make_scenario
from dart_gym.tasks.evaluation import foreign_reward
from dart_gym.tasks.evaluation.foreign_reward import read_score, run_reward
from tests.helpers import bundles
from tests.helpers.parameters import slow_but

SMALL = {"desktop": {"profile": "bare", "width": 320, "height": 240}}
TRACEBACK = "Traceback (most recent call last):\n  ...\nValueError: boom\n"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DART_GYM_SUITES", str(tmp_path / "suites"))
    return tmp_path


# --- what is printed


@pytest.mark.parametrize(
    ("output", "score"),
    [
        ("REWARD: 1.0\n", 1.0),
        ("PASS: a\n\nREWARD: 0.375\n\n", 0.375),
        ("REWARD: 0.2\nREWARD: 0", 0.0),
        ("reward: 1e-1", 0.1),
        ("REWARD:.5", 0.5),
        ("Total score: 0.35", 0.35),
        ("Total score: 0.35/1.0", 0.35),
        ("0.625", 0.625),
    ],
)
def test_the_last_line_is_the_score(output, score):
    assert read_score("reward.py", "python", 0, output, "")[0] == pytest.approx(score)
    assert read_score("reward.py", "python", 1, output, "a warning")[0] == pytest.approx(score)  # some say it so, too


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ("", "as its last line, not ''"),
        ("done", "not 'done'"),
        ("REWARD: 0.5\nbye", "not 'bye'"),
        ("REWARD: much", "not 'REWARD: much'"),
        ("REWARD: 0.5 of 1", "as its last line"),
        ("component 1: 0.2", "as its last line"),
        ("REWARD: nan", "nan, which is no score"),
        ("REWARD: -inf", "-inf, which is no score"),
        ("REWARD: 1e999", "inf, which is no score"),
        ("REWARD: 1.01", "1.01, which is no score"),
        ("REWARD: -0.1", "-0.1, which is no score"),
        ("\x00\udcff", "as its last line"),
    ],
)
def test_what_is_no_score_is_an_error(output, match):
    with pytest.raises(EvaluationFailure, match=match):
        read_score("reward.py", "python", 0, output, "")


@pytest.mark.parametrize(
    ("status", "errors", "match"),
    [
        (1, TRACEBACK, "reward.py ended with status 1: ValueError: boom"),
        (2, "", "status 2"),
        (-9, "", "status -9"),
        (137, "", "status 137"),
    ],
)
def test_a_reward_that_did_not_end_well_has_no_score(status, errors, match):
    with pytest.raises(EvaluationFailure, match=match):
        read_score("reward.py", "python", status, "REWARD: 1.0", errors)


def test_check_sh_prints_json_as_its_last_line():
    good = 'checked\n{"overall_score": 0.5, "subscores": {"a": 1, "b": 0}, "errors": []}'
    score, detail = read_score("check.sh", "bash", 0, good, "")
    assert score == 0.5 and "subscores" in detail
    for bad in ("", "0.5", "REWARD: 0.5", "{}", "[]", '{"overall_score": null}', '{"overall_score": true}',
                '{"overall_score": NaN}', '{"overall_score": 2}', '{"overall_score": "1"}'):  # fmt: skip
        with pytest.raises(EvaluationFailure, match=r"check\.sh (must print|gave)"):
            read_score("check.sh", "bash", 0, bad, "")
    with pytest.raises(EvaluationFailure, match="ended with status 1: no such file"):
        read_score("check.sh", "bash", 1, good, "no such file\n")


# --- on desktops


@pytest.fixture
async def desktop():
    machine = make_desktop(DesktopSpec(width=320, height=240))
    await machine.start()
    await machine.execute(["sh", "-c", "echo bread > /home/user/note.txt"])
    yield machine
    await machine.stop()


async def reward(desktop, place: Path, program: str, timeout: float = 60.0) -> Evaluation:
    """Run a program as a bundle's reward."""
    (place / "bundle").mkdir(exist_ok=True)
    (place / "bundle" / "reward.py").write_text(program)
    evaluator = {"type": "python", "url": "./reward.py"}
    return await run_reward(desktop, evaluator, place / "bundle", timeout=timeout)


GIVEN = """
import json, os, subprocess, urllib.request
assert open("/home/user/note.txt").read() == "bread\\n" and os.path.expanduser("~") == "/home/user"
assert open("/tmp/left").read() == "left"
assert open(os.environ["DART_BUNDLE"] + "/reward.py").read().startswith("\\nimport json")
command = ["desktop", "run", "sh", "-c", "cat /home/user/note.txt; echo no >&2; exit 3"]
done = subprocess.run(command, capture_output=True)
assert (done.returncode, done.stdout, done.stderr) == (3, b"bread\\n", b"no\\n"), done
reply = urllib.request.urlopen(os.environ["DART_DESKTOP_URL"] + "/platform").read()
assert reply == b"Linux", reply
open("/home/user/note.txt", "w").write("changed")  # a copy
import docx, openpyxl, pptx, requests
print("REWARD: 1.0")
"""


@pytest.mark.desktop
async def test_a_reward_has_what_is_documented(desktop, place):
    await desktop.write_file("/tmp/left", b"left")
    done = await reward(desktop, place, GIVEN)
    assert (done.status, done.score, done.evaluator) == (EvaluationStatus.OK, 1.0, "bundle/1.0"), done
    assert await desktop.read_file("/home/user/note.txt") == b"bread\n"


FORKS = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize(
    ("program", "match"),
    [
        ("raise ValueError('boom')", "reward.py ended with status 1: ValueError: boom"),
        ("print('REWARD: 1'); raise ValueError('late')", "ValueError: late"),
        ("import os; os.write(1, bytes(range(256)) * 9); print()", "as its last line"),
        ("print('REWARD: 7')", "no score in"),
        ("import os; os.kill(os.getpid(), 9)", "status -9"),
        ("x = bytearray(64 << 30)", "MemoryError"),
        ("while True: print('x' * 1000)", "printed more than 1 MiB"),
        pytest.param(
            "import time; time.sleep(900)",
            "took longer than 8 s .in reward.py. and was ended",
            marks=pytest.mark.slow,
        ),
        pytest.param("while True: pass", "took longer than 8 s", marks=pytest.mark.slow),
        pytest.param("import os, time; os.close(1); time.sleep(900)", "took longer than 8 s", marks=pytest.mark.slow),
        pytest.param(FORKS, "took longer than 8 s", marks=pytest.mark.slow),
        ("with open('/tmp/big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", "status (-25|1):|longer"),
    ],
)  # fmt: skip
async def test_each_way_to_break_it_is_an_error_and_never_0(desktop, place, program, match, evaluations):
    done = await reward(desktop, place, program, timeout=8.0)
    assert done.status is EvaluationStatus.EVALUATION_ERROR and done.score is None, done
    assert re.search(match, done.detail), done.detail
    assert (await desktop.execute(["echo", "alive"])).stdout == b"alive\n"
    assert processes_in(evaluations) == []


@pytest.fixture
def evaluations(monkeypatch):
    """Where evaluations have their directories: nobody else's, and short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


def processes_in(folder: str) -> list[str]:
    """Those that have something of it mounted, as a reward has; other tests may be at theirs meanwhile."""

    def mounts(pid: str) -> str:
        try:
            return Path("/proc", pid, "mountinfo").read_text()
        except OSError:
            return ""

    return [pid for pid in os.listdir("/proc") if pid.isdigit() and folder in mounts(pid)]


@pytest.mark.desktop
async def test_a_reward_that_runs_is_found_by_its_mounts(desktop, place, evaluations):
    running = asyncio.ensure_future(reward(desktop, place, "import time; time.sleep(2); print('REWARD: 1')"))
    while not running.done() and not processes_in(evaluations):
        await asyncio.sleep(0.05)
    assert not running.done()
    assert (await running).score == 1.0 and processes_in(evaluations) == []


PROBE = """
import os, socket, subprocess
found = []
for address in (("127.0.0.1", {port}), ("1.1.1.1", 53), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, 2).close(); found.append(f"reached {{address}}")
    except OSError: pass
for path in ({secret!r}, "/etc/shadow", "/root/.ssh", "/var/run/docker.sock"):
    try:
        open(path).close(); found.append("read " + path)
    except OSError: pass
for path in ("/usr/x", "/etc/x", "/x"):
    try:
        open(path, "w").close(); found.append("wrote " + path)
    except OSError: pass
found += [name for name in os.environ if "SECRET" in name]
if subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode == 0: found.append("made a namespace")
print(found); print("REWARD:", 0.0 if found else 1.0)
"""


@pytest.mark.desktop
async def test_a_reward_reaches_neither_the_network_nor_the_host(desktop, place, monkeypatch):
    monkeypatch.setenv("SECRET_OF_TESTS", "x")
    (place / "secret").write_text("x")
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = await reward(desktop, place, PROBE.format(port=server.server_port, secret=str(place / "secret")))
    server.shutdown()
    server.server_close()
    assert done.score == 1.0, done.detail


HIJACK = """
mkdir -p /home/user/.local/lib/python3.{minor}/site-packages /tmp/tmp_workspace
echo "import atexit; atexit.register(print, 'REWARD: 1.0')" > /tmp/json.py
cp /tmp/json.py /home/user/json.py
cp /tmp/json.py /home/user/.local/lib/python3.{minor}/site-packages/usercustomize.py
cp /tmp/json.py /tmp/sitecustomize.py
ln -s /home/user/note.txt /tmp/tmp_workspace/gt
mkfifo /home/user/fifo; ln -s /proc/self/environ /home/user/link; ln -s /home/user /home/user/loop
echo 'print("REWARD: 1.0")' > /home/user/reward.py; export BASH_ENV=/tmp/x
"""


@pytest.mark.desktop
async def test_what_the_agent_leaves_is_not_executed(desktop, place):
    for minor in (11, 12, 13):
        await desktop.execute(["sh", "-c", HIJACK.format(minor=minor)])
    done = await reward(desktop, place, "import json, sys; assert '/tmp' not in sys.path; print('REWARD: 0.25')")
    assert done.score == 0.25, done
    bundle = place / "bundle"
    (bundle / "gt").mkdir()
    (bundle / "gt" / "expected.json").write_text('{"word": "two"}')
    (bundle / "check.sh").write_text(
        "python3 -c 'import json; print(open(\"/tmp_workspace/gt/expected.json\").read())' && cat ~/note.txt\n"
        "echo '{\"overall_score\": 0.5}'\n"
    )
    done = await run_reward(desktop, {"type": "bash", "url": "./check.sh"}, bundle)
    assert done.score == 0.5 and "two" in done.detail and "bread" in done.detail, done  # its link was put aside


@pytest.mark.desktop
async def test_files_that_do_not_fit_are_worth_0(desktop, place, monkeypatch):
    from dart_gym.tasks.evaluation import evaluator_worker

    monkeypatch.setattr(evaluator_worker, "SCRATCH_BYTES", 4 << 20)
    await desktop.execute(["sh", "-c", "head -c 8M /dev/urandom > /home/user/big"])
    done = await reward(desktop, place, "print('REWARD: 1')")
    assert (done.status, done.score) == (EvaluationStatus.OK, 0.0) and "do not fit" in done.detail


@pytest.mark.desktop
async def test_without_a_sandbox_nothing_of_a_bundle_runs(desktop, place):
    desktop.spec = dataclasses.replace(desktop.spec, sandbox="none")
    done = await reward(desktop, place, "print('REWARD: 1')")
    assert done.status is EvaluationStatus.EVALUATION_ERROR and "sandbox only" in done.detail
    assert foreign_reward.is_foreign({"type": "python"}) and not foreign_reward.is_foreign({"func": "exact_match"})


def import_bundles(place: Path, found: dict[str, bundles.Bundle]) -> None:
    from dart_gym_task_sources.task_import import import_source

    import_source(str(bundles.write_zip(place / "x.zip", found)), "cua")


SETUPS = {
    "raises": (bundles.data_set_bundle("raises", setup="import nothing_like_this", dart=SMALL),
               r"task cua/raises: set-up step 2 of 2 \(run_script\): .*ended with status 1: ModuleNotFoundError"),
    "endless": (bundles.data_set_bundle("endless", setup="while True: pass", dart=SMALL), "cua/endless: set-up step 2"),
    "newer": (bundles.newer_bundle("newer", setup="echo a file is missing; exit 4", dart=SMALL),
              "cua/newer: .* ended with status 4: a file is missing"),
    "needy": (bundles.data_set_bundle("needy", setup=bundles.SLACK, dart=SMALL),
              "task cua/needy cannot run here: the mock sites slack"),
}  # fmt: skip


@pytest.mark.desktop
@pytest.mark.parametrize("name", SETUPS)
async def test_a_set_up_that_fails_names_the_task_and_the_reason(desktop, place, monkeypatch, name):
    from dart_gym.tasks.setup import command_steps

    monkeypatch.setattr(command_steps, "EXECUTE_TIMEOUT_S", 3.0)
    bundle, match = SETUPS[name]
    import_bundles(place, {name: bundle})
    scenario = make_scenario("cua")
    with pytest.raises(TaskError, match=match) as caught:
        await scenario.prepare(desktop, get_task(f"cua/{name}"), 0)
    assert "\n" not in str(caught.value)
    await scenario.close()


@pytest.mark.desktop
async def test_the_set_up_runs_inside_as_the_desktops_user(desktop, place):
    setup = "import getpass, os; print(getpass.getuser(), os.path.exists(%r), file=open('/home/user/who', 'w'))"
    import_bundles(place, {"who": bundles.data_set_bundle("who", setup=setup % str(place), dart=SMALL)})
    scenario = make_scenario("cua")
    await scenario.prepare(desktop, get_task("cua/who"), 0)
    assert await desktop.read_file("/home/user/who") == b"user False\n"
    assert (await scenario.evaluate(desktop, TerminalState.DONE, [])).score == 0.0
    await scenario.close()


@pytest.mark.desktop
async def test_references_and_hidden_files_are_never_on_the_desktop_of_the_agent(desktop, place):
    import_bundles(place, {"newer": bundles.newer_bundle("newer", dart=SMALL)})
    scenario = make_scenario("cua")
    await scenario.prepare(desktop, get_task("cua/newer"), 0)
    listed = (await desktop.execute(["find", "/tmp", "/home/user", "-name", "*"])).stdout.decode()
    assert "words.csv" in listed and "results" in listed
    for hidden in ("expected.json", "seed.txt", "check.sh", "uda_setup", "meta.json"):
        assert hidden not in listed
    assert (await scenario.evaluate(desktop, TerminalState.DONE, [])).score == 0.0
    assert b"expected" not in (await desktop.execute(["ls", "-R", "/tmp"])).stdout
    await desktop.execute(["sh", "-c", "echo two > /tmp_workspace/results/answer.txt"])
    assert (await scenario.evaluate(desktop, TerminalState.DONE, [])).score == 1.0
    await scenario.close()


# --- whole episodes

TERMINAL = {"type": "launch", "parameters": {"command": ["gnome-terminal", "--working-directory=/home/user"]}}


def _played(name: str, text: str) -> bundles.Bundle:
    """A bundle whose oracle types into a terminal."""
    dart = {
        "desktop": {"profile": "bare", "width": 1024, "height": 640}, "max_steps": 4,
        "ready": {"window": "Terminal"}, "oracle": [{"kind": "type", "text": text}],
    }  # fmt: skip
    if name == "newer":
        setup = bundles.UDA_SETUP + "nohup setsid gnome-terminal --working-directory=/home/user &\n"
        return bundles.newer_bundle(name, setup=setup, dart=dart)
    steps = [*bundles.task_json(name)["config"], TERMINAL]
    return bundles.data_set_bundle(name, config=steps, dart=dart)


PLAYED = {
    "reward": _played("reward", "echo milk > note.txt\n"),
    "partial": _played("partial", "echo milk and bread > note.txt\n"),
    "newer": _played("newer", "cut -d, -f2 /tmp_workspace/context/words.csv > /tmp_workspace/results/answer.txt\n"),
}


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("source", slow_but(["archive"], ["directory", "archive"]))
def test_imported_bundles_are_played_by_their_oracles(place, source):
    from dart_gym_task_sources.task_import import import_source

    if source == "directory":
        written = bundles.write_directory(place / "bundles", PLAYED)
    else:
        written = bundles.write_tar(place / "bundles.tar.gz", PLAYED)
    import_source(str(written), "cua")
    with gymnasium.make("DartGym/Desktop-v0", suite="cua") as env:
        for name, wanted in (("reward", 1.0), ("partial", 0.5), ("newer", 1.0)):
            for solved in (False, True):
                observation, info = env.reset(seed=1, options={"task_id": f"cua/{name}"})
                assert info["task_id"] == f"cua/{name}" and observation["screenshot"].shape == (640, 1024, 3)
                if solved:
                    _, score, terminated, truncated, info = env.step(env.unwrapped.oracle())
                    assert not terminated and not truncated and score == 0.0
                _, score, terminated, _, info = env.step({"kind": "done"})
                assert terminated and info["evaluation_status"] == "ok", info
                assert score == (wanted if solved else 0.0), info


# --- mock sites

MAIL_SETUP = """
import json, urllib.request, uuid
sid = str(uuid.uuid4())
open("/tmp/task_web_sid", "w").write(sid)
state = {"emails": [{"id": "e1", "folder": "inbox"}]}
body = json.dumps({"action": "set", "state": state}).encode()
request = urllib.request.Request(f"__CUA_GYM_MAIL_URL__/post?sid={sid}", body, {"Content-Type": "application/json"})
assert json.load(urllib.request.urlopen(request))["success"]
assert json.load(urllib.request.urlopen("http://__CUA_GYM_MAIL_HOST__/go?sid=" + sid))["initial_state"] == state
"""
MAIL_REWARD = """
import json, urllib.request
sid = open("/tmp/task_web_sid").read()
for base in ("__CUA_GYM_MAIL_URL__", "http://__CUA_GYM_MAIL_HOST__", "https://cua-gym-mail.xlang.ai"):
    state = json.load(urllib.request.urlopen(f"{base}/go?sid={sid}"))
moved = state["current_state"]["emails"][0]["folder"] == "spam" and state["state_diff"]
print("REWARD:", 1.0 if moved else 0.0)
"""


@pytest.mark.desktop
async def test_a_bundle_with_a_bundled_site_is_set_up_and_scored_by_its_state(place):
    found = bundles.data_set_bundle("mail", setup=MAIL_SETUP, reward=MAIL_REWARD, dart=SMALL)
    import_bundles(place, {"mail": found})
    task = get_task("cua/mail")
    assert task.desktop.sites == ("mail",)
    machine, scenario = make_desktop(task.desktop), make_scenario("cua")
    await machine.start()
    try:
        await scenario.prepare(machine, task, 0)
        first = await scenario.evaluate(machine, TerminalState.DONE, [])
        assert (first.status, first.score) == (EvaluationStatus.OK, 0.0), first
        moved = {"action": "set_current", "state": {"emails": [{"id": "e1", "folder": "spam"}]}}
        body = (
            "import json, urllib.request as u; u.urlopen(u.Request('http://mail.test/post', json.dumps(%r).encode()))"
        )
        assert (await machine.execute(["python3", "-c", body % moved])).returncode == 0
        solved = await scenario.evaluate(machine, TerminalState.DONE, [])
        assert (solved.status, solved.score) == (EvaluationStatus.OK, 1.0), solved
    finally:
        await scenario.close()
        await machine.stop()
