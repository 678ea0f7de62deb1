"""The built-in metrics give what OSWorld's own give, on many inputs; and raise where those raise."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dart_gym.tasks.evaluation import evaluator_environment, evaluator_worker_main
from dart_gym.tasks.evaluation.metrics import METRICS

CASES = 400
VALUES = [None, "", "a", "A", "a\n", "a b", "true", 1, 1.0, 0, True, [], ["a"], ["a", "b"], {"a": 1}]
TEXTS = ["", "a", "b", "a b", "ab\n", "A\tb", "é中", "one\ntwo\n"]
FILES = ["a b\n", "a  b", "A b", "a\tb\n\n", "", "é\r\n中", "a b"]
# Runs in the evaluator's environment: for each case the score, or the name of the exception.
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import evaluator_worker_main as worker_main
sys.meta_path.append(worker_main.AbsentModules())
worker_main.make_packages_lazy()
answers = []
for name, arguments, options in json.loads(sys.stdin.read()):
    try:
        answers.append(float(worker_main.find_function("metrics", name)(*arguments, **options)))
    except Exception as error:
        answers.append(type(error).__name__)
sys.stderr.write("ANSWERS" + json.dumps(answers))
"""


def cases(folder: Path) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Many calls, the same each time."""
    draw = random.Random(3)
    paths = [folder / f"{number}.txt" for number in range(len(FILES))]
    for path, text in zip(paths, FILES, strict=True):
        path.write_bytes(text.encode())
    files = [*map(str, paths), None, "", str(folder / "none")]
    found = []
    for _ in range(CASES):
        name = draw.choice(sorted(METRICS))
        arguments: list[Any] = [draw.choice(VALUES), {"expected": draw.choice(VALUES)}]
        options: dict[str, Any] = {}
        if name == "check_include_exclude":
            rules = {
                key: draw.sample(TEXTS, draw.randrange(3)) for key in ("include", "exclude") if draw.random() < 0.8
            }
            arguments = [draw.choice([None, *TEXTS]), rules]
        elif name == "compare_text_file":
            arguments = [draw.choice(files), draw.choice(files)]
            options = {key: True for key in ("ignore_blanks", "ignore_case") if draw.random() < 0.5}
        found.append((name, arguments, options))
    return found


def ours(name: str, arguments: list[Any], options: dict[str, Any]) -> float | str:
    """Our score, or the name of our exception."""
    try:
        return METRICS[name](*arguments, **options)
    except Exception as error:
        return type(error).__name__


@pytest.mark.desktop  # for the evaluator's environment, which that part of the set-up makes
def test_built_in_metrics_equal_osworlds(tmp_path):
    found = cases(tmp_path)
    folder = str(Path(evaluator_worker_main.__file__).parent)
    command = [str(evaluator_environment.find().python), "-I", "-c", PROGRAM, folder]
    result = subprocess.run(command, input=json.dumps(found), capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr[-2000:]
    theirs = json.loads(result.stderr.rpartition("ANSWERS")[2])
    differing = []
    for case, expected in zip(found, theirs, strict=True):
        got = ours(*case)
        same = got == expected or (isinstance(got, str) and isinstance(expected, str))
        if not same:
            differing.append((case, expected, got))
    assert differing == []
    assert {1.0, 0.0} < set(theirs)  # scores of both kinds and exceptions were compared
