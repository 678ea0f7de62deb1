"""The wheel, installed with its light dependencies alone: `scripts/package.sh` builds it and names that Python."""

from __future__ import annotations

import email
import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.dart_gym.envs.test_strange_machines import SHOWN

pytestmark = pytest.mark.package
ROOT = Path(__file__).parents[2]
DIST = ROOT / "build" / "dist"
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
LIGHT = 3_000_000
"""Bytes: the demo models are in a wheel of their own."""
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
    assert said.partition(": ")[2] in [block.replace("docs/", f"{URLS['Documentation']}/") for block in SHOWN]


@pytest.mark.parametrize("command", ["dart_gym.commands.gym_cli", "dart_agent.commands.agent_cli"])
def test_its_commands_start(command):
    assert "Usage" in light("-m", command, "--help").stdout


def test_an_index_is_told_where_the_project_is_and_shows_its_readme_whole():
    """Links and pictures have full addresses, of files that are there."""
    (wheel,) = DIST.glob("dart_gui-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = email.message_from_string(archive.read(name).decode())
    assert dict(url.split(", ", 1) for url in told.get_all("Project-URL", [])) == URLS
    readme = told.get_payload()
    assert readme.startswith("# DART-Gym")
    targets = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", readme)
    ours = [target for _, target in targets if target.startswith(URLS["Repository"])]
    assert len(ours) > 20 and all(target.startswith("https://") for _, target in targets)
    for picture, target in targets:
        kind, _, path = target.removeprefix(f"{URLS['Repository']}/").partition("/main/")
        if target in ours:
            assert kind == ("raw" if picture else "blob") and (ROOT / path.partition("#")[0]).exists(), target


def test_the_wheel_has_the_files_of_the_packages_and_nothing_else():
    (wheel,) = DIST.glob("dart_gui-*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    assert wheel.stat().st_size < LIGHT
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "dart_gym", "dart_agent", "dart_train", "dart_programs.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert packed == set(listed.stdout.split()) and packed
    inside = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    assert packed <= inside and "LICENSE" in inside
