"""The example that is all of DART in one file: it learns, it is short, and it needs nothing of dart_train."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "examples" / "dart_in_one_file.py"


def test_it_is_short_and_stands_alone():
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 350
    nodes = list(ast.walk(ast.parse(source)))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert {str(name).split(".")[0] for name in names} - set(sys.stdlib_module_names) <= {
        "dart_gym", "gymnasium", "numpy", "torch",
    }  # fmt: skip


@pytest.mark.train
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_it_learns_with_weights_that_lag_behind():
    """From about every sixth held-out screen to most of them, in less than a minute where nothing else runs."""
    command = [sys.executable, str(FILE), "--seed", "1", "--updates", "80", "--seconds", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    found = {name: int(share) for name, share in re.findall(r"^(before|after): +(\d+)%", done.stdout, re.MULTILINE)}
    assert found["before"] <= 40 and found["after"] >= 75, done.stdout
    assert max(map(int, re.findall(r"\(max (\d+)", done.stdout))) >= 1, "rollouts never lagged behind"
