"""Programs of `scripts/` start as the docs call them: by their path, from anywhere, with nothing set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
BESIDE = [
    path for path in sorted(SCRIPTS.glob("*.py")) if re.search(r"^from (dart_lab|tests)\b", path.read_text(), re.M)
]
"""Those that need what lies in the checkout and is not installed."""

pytestmark = [pytest.mark.process, pytest.mark.train]


@pytest.mark.thorough
@pytest.mark.parametrize("path", BESIDE, ids=lambda path: path.stem)
def test_a_script_finds_what_is_not_installed(path, tmp_path):
    load = f"import runpy, sys; sys.path[0] = {str(SCRIPTS)!r}; runpy.run_path({str(path)!r}, run_name='loaded')"
    there = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", load], cwd=tmp_path, env=there, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_there_are_such_scripts():
    assert {path.stem for path in BESIDE} == {"make_pointer_start", "page_picture"}


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.stem)
def test_no_script_replaces_a_function_that_it_shares(path):
    """A shell says nothing of it: `install` then calls the script's own `packages`, and installs none."""
    function = re.compile(r"^(\w+)\(\)", re.M)
    shared = [SCRIPTS / f"{name}.sh" for name in ("common", "indexes", "torch") if path.stem != name]
    replaced = {
        other.stem: found
        for other in shared
        if (found := {*function.findall(path.read_text())} & {*function.findall(other.read_text())})
    }
    assert not replaced
