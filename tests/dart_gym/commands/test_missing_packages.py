"""Without the optional packages every command shows its help, and what it lacks is one line that names the extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dart_gym.commands.program import EXTRAS
from scripts.failures.world import CONFIG
from tests.helpers.all_commands import every_command

ROOT = Path(__file__).parents[3]
MODULES = {
    "dart-gym": "dart_gym.commands.gym_cli",
    "dart-agent": "dart_agent.commands.agent_cli",
    "dart-train": "dart_train.commands.train_cli",
}
HEAVY = ("torch", "transformers", "sqlalchemy", "ray", "matplotlib", "pandas", "vllm")
LACKING = {
    "dart-gym mcp": "mcp",
    "dart-agent init tiny --out made": "train",
    "dart-agent ground train items --model model --out trained": "train",
    "dart-train check-gpu": "train",
    "dart-train parity model": "train",
    "dart-train data check mine.yaml": "train",
    "dart-train data check --migrate --url sqlite:////tmp/none/x.sqlite": "train",
    "dart-train report mine.yaml": "train",
    "dart-train run mine.yaml": "train",
    "dart-train process mine.yaml rollout": "train",
    "dart-train status mine --ray auto": "train",
}

pytestmark = pytest.mark.process


def lines_end(program: str, lines: list[str], folder: Path) -> dict[str, tuple[int, str]]:
    command = [sys.executable, "-m", "tests.helpers.without_packages", MODULES[program], str(folder)]
    there = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300", "TERM": "dumb"}
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, env=there, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("program", MODULES)
def test_help_is_there_without_them(program, tmp_path):
    lines = [
        f"{words} --help"
        for words, command in every_command().items()
        if words.startswith(f"{program} ") and not command.callback.__module__.startswith("dart_gym_")
    ]
    for line, (status, output) in lines_end(program, [f"{program} --help", *lines], tmp_path).items():
        assert status == 0 and "Usage:" in output, (line, output)


@pytest.mark.thorough
@pytest.mark.parametrize("program", MODULES)
def test_one_line_names_the_extra(program, tmp_path):
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    lines = [line for line in LACKING if line.startswith(f"{program} ")]
    for line, (status, output) in lines_end(program, lines, tmp_path).items():
        assert status == 1, (line, output)
        assert f"pip install 'dart-gui[{LACKING[line]}]'" in output.splitlines()[-1], (line, output)


@pytest.mark.parametrize("program", MODULES)
def test_help_loads_nothing_heavy(program):
    code = (
        f"import sys, contextlib\nfrom {MODULES[program]} import main\nsys.argv = ['x', '--help']\n"
        f"with contextlib.suppress(SystemExit): main()\nprint([one for one in {HEAVY} if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_each_package_of_an_extra_is_known():
    assert {name for names in EXTRAS.values() for name in names} >= {"torch", "sqlalchemy", "ray", "mcp", "peft"}
