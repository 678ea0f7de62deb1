"""A file that is not imported has no test that would have been chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.selecting import ruled_out

ROOT = Path(__file__).parents[1]
UNIT = "not desktop and not train"


@pytest.mark.parametrize(
    "source",
    [
        "pytestmark = pytest.mark.train\n",
        "x = 1\npytestmark = [pytest.mark.process, pytest.mark.desktop, pytest.mark.timeout(9)]\n",
        "pytestmark = [\n    pytest.mark.process,\n    pytest.mark.train,\n]  # all\n\ndef test_x(): ...\n",
    ],
)
def test_what_all_tests_of_a_file_are_marked_with_rules_it_out(source):
    assert ruled_out(source, UNIT)
    assert not ruled_out(source, "not slow")
    assert not ruled_out(source, "") and not ruled_out(source, f"{UNIT} or process")
    assert not ruled_out(source, "not (desktop and train)")


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.train\ndef test_x(): ...\n",
        "pytestmark = pytest.mark.process\n\n@pytest.mark.train\ndef test_x(): ...\n",
        "    pytestmark = pytest.mark.train\n",
        "pytestmark = pytest.mark.trainer\n",
    ],
)
def test_other_marks_do_not(source):
    assert not ruled_out(source, UNIT)


@pytest.mark.parametrize(
    "source",
    [
        "pytestmark = pytest.mark.train\n",
        "@pytest.mark.train\ndef test_x(): ...\n",
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.train)])\ndef test_x(x): ...\n",
        "from pytest import mark\n\n@mark.train\ndef test_x(): ...\n",
    ],
)
def test_a_file_that_never_names_the_mark_that_is_asked_for_is_ruled_out(source):
    assert not ruled_out(source, "train") and not ruled_out(source, "train and not slow")
    assert not ruled_out(source, "train or ray") and not ruled_out(source, "(train)")
    assert ruled_out(source, "ray") and ruled_out(source, "not slow and ray") and ruled_out(source, "train and ray")
    assert ruled_out("def test_x(): ...\n", "train")


@pytest.mark.process
def test_one_parameter_of_each_test():
    def chosen(*options: str) -> list[str]:
        """Ids of the tests of a file in which a test's first parameter is slow and the second is not."""
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-m", "not slow"]
        file = "tests/dart_gym/cluster/test_process_faults.py"
        done = subprocess.run([*collect, *options, file], capture_output=True, text=True, check=True, cwd=ROOT)
        return [line for line in done.stdout.splitlines() if line.startswith(file)]

    every, once = chosen(), chosen("--one-parameter")
    names = [name.partition("[")[0] for name in once]
    assert len(every) > len(once) == len(set(names)) and set(names) == {name.partition("[")[0] for name in every}
