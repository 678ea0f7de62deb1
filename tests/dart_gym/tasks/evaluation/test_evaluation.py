"""OSWorld's evaluation: metrics, how they combine, what FAIL means, and that errors are never scores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_gym.core.errors import DesktopError, EvaluationFailure, TaskError
from dart_gym.core.outcomes import EvaluationStatus, TerminalState
from dart_gym.desktops.base.desktop import CommandResult, DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.evaluation.evaluator import evaluate
from dart_gym.tasks.evaluation.metrics import METRICS, compare_text_file
from dart_gym.tasks.evaluation.score_rules import Check, combine, decided, early_score, read_evaluator
from dart_gym.tasks.setup.setup_runner import cached_path, command_line, run_steps

RESULT = {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"}
EXPECTED = {"type": "vm_file", "path": "/home/user/b.txt", "dest": "b.txt"}
SAME = {"func": "compare_text_file", "result": RESULT, "expected": EXPECTED}


@pytest.fixture
async def desktop():
    fake = make_desktop(DesktopSpec(kind="fake", width=200, height=100))
    await fake.start()
    yield fake
    await fake.stop()


@pytest.mark.parametrize(
    ("metric", "result", "rules", "score"),
    [
        ("exact_match", "a", {"expected": "a"}, 1.0),
        ("exact_match", "a\n", {"expected": "a"}, 0.0),
        ("exact_match", None, {"expected": "a"}, 0.0),
        ("match_in_list", "a", {"expected": ["b", "a"]}, 1.0),
        ("match_in_list", None, {"expected": ["a"]}, 0.0),
        ("is_in_list", ["x", "y"], {"expected": "y"}, 1.0),
        ("is_in_list", "xyz", {"expected": "y"}, 1.0),
        ("check_include_exclude", "one two", {"include": ["one", "two"]}, 1.0),
        ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["two"]}, 0.0),
        ("check_include_exclude", "one", {"include": ["one", "two"], "exclude": []}, 0.0),
        ("check_include_exclude", "", {}, 1.0),
        ("check_include_exclude", None, {}, 0.0),
    ],
)
def test_metrics_of_values(metric, result, rules, score):
    assert METRICS[metric](result, rules) == score


@pytest.mark.parametrize(
    ("actual", "expected", "options", "score"),
    [
        ("a b\n", "a b\n", {}, 1.0),
        ("a b", "a b\n", {}, 0.0),
        ("a\tb\n\n", " a b", {"ignore_blanks": True}, 1.0),
        ("ab", "a b", {"ignore_blanks": True}, 0.0),
        ("A", "a", {"ignore_case": True}, 1.0),
        ("A", "a", {}, 0.0),
    ],
)
def test_text_files_are_compared(tmp_path, actual, expected, options, score):
    paths = tmp_path / "actual", tmp_path / "expected"
    paths[0].write_text(actual)
    paths[1].write_text(expected)
    assert compare_text_file(*paths, **options) == score
    assert compare_text_file(None, paths[1]) == 0.0


@pytest.mark.parametrize(
    ("conj", "scores", "combined"),
    [
        ("and", [1.0, 1.0], 1.0),
        ("and", [1.0, 0.5], 0.75),
        ("and", [0.5, 0.0], 0.0),
        ("or", [0.0, 1.0], 1.0),
        ("or", [0.2, 0.5], 0.5),
        ("or", [0.0, 0.0], 0.0),
    ],
)
def test_metrics_combine_as_upstream(conj, scores, combined):
    assert combine(conj, scores) == combined


@given(st.sampled_from(["and", "or"]), st.lists(st.floats(0, 1), min_size=1))
def test_stopping_early_never_changes_the_score(conj, scores):
    looked_at = []
    for score in scores:
        looked_at.append(score)
        if decided(conj, score):
            break
    assert combine(conj, looked_at) == combine(conj, scores)
    assert 0.0 <= combine(conj, scores) <= 1.0


@pytest.mark.parametrize("scores", [[], [1.5], [-1.0], [float("nan")]])
def test_what_is_no_score_is_a_failure(scores):
    with pytest.raises(EvaluationFailure):
        combine("and", scores)


@pytest.mark.parametrize(
    ("func", "terminal", "score"),
    [
        ("infeasible", TerminalState.FAIL, 1.0),
        ("infeasible", TerminalState.DONE, 0.0),
        ("infeasible", TerminalState.STEP_LIMIT, 0.0),
        ("exact_match", TerminalState.FAIL, 0.0),
        ("exact_match", TerminalState.DONE, None),
    ],
)
def test_declaring_a_task_infeasible(func, terminal, score):
    assert early_score(read_evaluator({"func": func, "result": RESULT}), terminal) == score


def test_lists_and_fillers_are_read():
    plan = read_evaluator({"func": ["f", "g"], "conj": "or", "result": [RESULT, RESULT], "expected": [{}, EXPECTED]})
    assert plan.conj == "or"
    assert plan.checks == (Check("f", RESULT), Check("g", RESULT, EXPECTED))


@pytest.mark.parametrize(
    "evaluator",
    [
        {},
        {"func": []},
        {"func": "f"},
        {"func": "f", "result": []},
        {"func": ["f"], "result": RESULT},
        {"func": ["f", "g"], "result": [RESULT]},
        {"func": "f", "result": RESULT, "conj": "xor"},
        {"func": [3], "result": [RESULT]},
    ],
)
def test_a_malformed_evaluator_is_a_failure(evaluator):
    with pytest.raises(EvaluationFailure):
        read_evaluator(evaluator)


async def test_files_are_fetched_and_compared(desktop):
    await desktop.write_file("/home/user/b.txt", b"text")
    assert (await evaluate(desktop, SAME, TerminalState.DONE)).score == 0.0  # there is no a.txt
    await desktop.write_file("/home/user/a.txt", b"text")
    evaluation = await evaluate(desktop, SAME, TerminalState.DONE)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 1.0)
    assert evaluation.evaluator.startswith("dart-rules/")


async def test_postconfig_runs_before_the_getters(desktop):
    await desktop.write_file("/home/user/a.txt", b"text")
    write = {"type": "write_file", "parameters": {"path": "/home/user/b.txt", "text": "text"}}
    assert (await evaluate(desktop, {**SAME, "postconfig": [write]}, TerminalState.DONE)).score == 1.0


async def test_several_files_are_given_to_the_metric(desktop):
    await desktop.write_file("/home/user/b.txt", b"text")
    multi = {"type": "vm_file", "multi": True, "path": ["/home/user/a.txt", "/home/user/b.txt"], "dest": ["a", "b"]}
    evaluation = await evaluate(desktop, {**SAME, "result": {**multi, "gives": [1]}}, TerminalState.DONE)
    assert evaluation.score == 1.0


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        ({"func": "compare_table", "result": RESULT}, "compare_table"),
        ({"func": "exact_match", "result": {"type": "cloud_file"}}, "cloud_file"),
        ({"func": "exact_match", "result": {"type": "vm_file"}}, "path"),
        ({"func": "exact_match", "result": RESULT, "expected": {"type": "rule", "rules": {}}}, "expected"),
        (
            {"func": "exact_match", "result": {**RESULT, "dest": "../x"}, "expected": {"type": "rule"}},
            "plain file name",
        ),
        ({**SAME, "postconfig": [{"type": "download"}]}, "step 1 of 1"),
        ({**SAME, "postconfig": [{"type": "launch", "parameters": {}}]}, "command"),
    ],
)
async def test_a_broken_evaluator_is_a_status_with_a_reason(desktop, evaluator, reason, monkeypatch, tmp_path):
    monkeypatch.setenv(evaluator_environment.VARIABLE, str(tmp_path))  # as where OSWorld's evaluator is not installed
    await desktop.write_file("/home/user/a.txt", b"text")
    evaluation = await evaluate(desktop, evaluator, TerminalState.DONE)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.EVALUATION_ERROR, None)
    assert reason in evaluation.detail


async def test_a_reference_on_the_desktop_that_the_agent_has_removed_is_worth_0(desktop):
    await desktop.write_file("/home/user/a.txt", b"text")
    evaluation = await evaluate(desktop, SAME, TerminalState.DONE)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.OK, 0.0)


async def test_a_broken_desktop_is_not_a_score(desktop):
    desktop.crash()
    evaluation = await evaluate(desktop, SAME, TerminalState.DONE)
    assert (evaluation.status, evaluation.score) == (EvaluationStatus.ENVIRONMENT_ERROR, None)


class _Recorder:
    """A desktop that only notes what it is asked to run."""

    spec = DesktopSpec(width=320, height=240)

    def __init__(self):
        self.commands = []

    async def execute(self, command, **_):
        self.commands.append(command)
        return CommandResult(1, b"out", b"err")

    async def launch(self, command, **_):
        self.commands.append(command)


@pytest.mark.parametrize(
    ("parameters", "command"),
    [
        ({"command": ["a", "b c"]}, ["a", "b c"]),
        ({"command": "a 'b c'"}, ["a", "b c"]),
        ({"command": "a | b", "shell": True}, ["/bin/sh", "-c", "a | b"]),
        ({"command": "a | b", "shell": "true"}, ["/bin/sh", "-c", "a | b"]),
        ({"command": ["~/run", "~", "a~/b"]}, ["/home/user/run", "/home/user", "a~/b"]),
    ],
)
async def test_commands_are_read_as_osworld_reads_them(parameters, command):
    desktop = _Recorder()
    assert command_line(parameters) == command
    await run_steps(desktop, [{"type": kind, "parameters": parameters} for kind in ("launch", "execute", "command")])
    assert desktop.commands == [command] * 3


async def test_placeholders_are_filled_where_osworld_fills_them():
    desktop, kinds = _Recorder(), ("execute", "command", "launch", "execute_with_verification")
    text = "x {SCREEN_WIDTH} {SCREEN_HEIGHT_HALF} {CLIENT_PASSWORD}"
    await run_steps(desktop, [{"type": kind, "parameters": {"command": text}} for kind in kinds])
    assert desktop.commands[:2] == [["x", "320", "120", "password"]] * 2
    assert desktop.commands[2:] == [text.split()] * 2


async def test_output_is_kept_where_asked_and_only_there(tmp_path):
    step = {"type": "execute", "parameters": {"command": ["a"], "stdout": "o.txt"}}
    await run_steps(_Recorder(), [step], cache=tmp_path)
    assert (tmp_path / "o.txt").read_bytes() == b"out"
    with pytest.raises(TaskError, match="during an evaluation"):
        await run_steps(_Recorder(), [step])
    assert cached_path(tmp_path, "sub/x") == tmp_path / "sub/x"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"type": "sleep", "parameters": {"seconds": -1}}, "sleep"),
        ({"type": "sleep", "parameters": {"seconds": "soon"}}, "must be a number"),
        ({"type": "googledrive", "parameters": {}}, "googledrive.* is not supported"),
        ({"parameters": {}}, "is not supported"),
        ({"type": "launch", "parameters": []}, "must be an object|lacks"),
        ({"type": "launch", "parameters": {"command": []}}, "empty"),
        ({"type": "launch", "parameters": {"command": [1]}}, "list of texts"),
        ({"type": "execute", "parameters": {"command": "a", "until": {"rc": 0}}}, "until"),
        ({"type": "write_file", "parameters": {"path": "/a", "text": 3}}, "must be text"),
        ({"type": "activate_window", "parameters": {"window_name": ""}}, "window_name"),
    ],
)
async def test_a_step_that_cannot_be_carried_out_is_named(step, reason):
    with pytest.raises(TaskError, match=f"set-up step 2 of 2.*({reason})"):
        await run_steps(_Recorder(), [{"type": "sleep", "parameters": {"seconds": "0"}}, step])


async def test_trouble_with_the_desktop_stays_its_own(desktop):
    with pytest.raises(DesktopError):
        await run_steps(desktop, [{"type": "launch", "parameters": {"command": ["a"]}}])
