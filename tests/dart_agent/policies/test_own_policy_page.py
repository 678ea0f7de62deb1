"""The page "write your own policy": its example is complete and short, and its class works on the command line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.episode_files import episode_directory, read_episode

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "tutorials" / "own_policy.md"


@pytest.mark.thorough
@pytest.mark.process
def test_the_example_is_short_and_works_as_a_policy_of_the_command(tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) < 25
    (tmp_path / "redmost.py").write_text(code)
    printed = subprocess.run([sys.executable, "redmost.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                             check=True, capture_output=True, text=True, timeout=60).stdout  # fmt: skip
    assert re.match(r"fake/click-button: \d+ of 20 episodes, 95 % interval", printed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ["eval", "fake/click-button", "--policy", "redmost:Redmost", "--n", "2", "--out", str(tmp_path / "e")]
    result = CliRunner().invoke(agent_cli.app, command, catch_exceptions=False)
    assert result.exit_code == 0 and "fake" in result.output
    recorded = read_episode(episode_directory(tmp_path / "e", "fake/click-button", 1))
    assert [step.thought for step in recorded.steps].count("red means here") == 1
