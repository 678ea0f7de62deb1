"""The wheel, installed with its light dependencies alone: `scripts/package.sh` builds it and names that Python."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.dart_gym.envs.test_strange_machines import SHOWN

pytestmark = pytest.mark.package
ROOT = Path(__file__).parents[2]
DIST = ROOT / "build" / "dist"
EPISODE = """
import gymnasium
env = gymnasium.make("dart_gym:DartGym/Desktop-v0", task="{task}")
env.reset(seed=0)
print(env.step(env.unwrapped.oracle())[1])
env.close()
"""


def light(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of the fresh environment, away from the sources."""
    python = os.environ.get("DART_LIGHT_PYTHON")
    assert python, "these tests need the built wheel in an environment of its own: make test-package"
    others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", env=others | variables, timeout=110)


def test_drawn_desktops_play_and_nothing_heavy_is_there(tmp_path):
    assert light("-c", EPISODE.format(task="fake/click-button"), PATH=str(tmp_path)).stdout == "1.0\n"
    for heavy in ("torch", "transformers", "sqlalchemy", "matplotlib"):
        assert light("-c", f"import {heavy}").returncode == 1


def test_a_machine_without_debians_packages_gets_the_message_of_the_docs(tmp_path):
    options = {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none", "DART_GYM_CHROMIUM": ""}
    said = light("-c", EPISODE.format(task="miniwob/click-test"), **options).stderr.splitlines()[-1]
    assert said.partition(": ")[2] in SHOWN


@pytest.mark.parametrize("command", ["dart_gym.commands.gym_cli", "dart_agent.commands.agent_cli"])
def test_its_commands_start(command):
    assert "Usage" in light("-m", command, "--help").stdout


def test_the_wheel_has_the_files_of_the_packages_and_nothing_else():
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "dart_gym", "dart_agent", "dart_train"], capture_output=True, text=True, cwd=ROOT
    )
    assert packed == set(listed.stdout.split()) and packed
    inside = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    assert packed <= inside and "LICENSE" in inside
