"""What looks at every commit: the hooks of pre-commit, and the workflow of the forge, run what is there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["ci"]["steps"]
UNTIDY = '"""A file."""\nimport os\nx = {\'a\':1}\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with the project's settings, its environment, and one file that is not in order."""
    for name in ("pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "untidy.py").write_text(UNTIDY)
    return tmp_path


def run_hook(name: str, place: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """Run a hook's own command as pre-commit does: in the checkout, with the names of files where it takes them."""
    hook = next(hook for hook in HOOKS if hook["id"] == name)
    command = [*shlex.split(hook["entry"]), *(files if hook.get("pass_filenames", True) else ())]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100)


def test_every_hook_runs_what_is_installed_here():
    assert [hook["id"] for hook in HOOKS] == ["ruff", "ruff-format", "mypy", "generated"]
    assert all(hook["language"] == "system" for hook in HOOKS)  # pre-commit fetches nothing
    for hook in HOOKS:
        assert shutil.which(shlex.split(hook["entry"])[0], path=f"{ROOT}:{os.environ['PATH']}"), hook["id"]


def test_the_linter_mends_what_it_can_and_stops_the_commit(checkout):
    assert run_hook("ruff", checkout, "untidy.py").returncode == 1
    assert "import os" not in (checkout / "untidy.py").read_text()
    assert run_hook("ruff", checkout, "untidy.py").returncode == 0


def test_the_formatter_writes_the_file(checkout):
    assert run_hook("ruff-format", checkout, "untidy.py").returncode == 0
    assert 'x = {"a": 1}' in (checkout / "untidy.py").read_text()


@pytest.mark.slow
def test_what_is_generated_from_code_is_written_by_its_hook():
    """The files are up to date (other tests hold that), so that nothing changes here."""
    written = [
        ROOT / name for name in ("configs/schema.json", "docs/reference/configuration.md", "docs/images/rooms-gym.svg")
    ]
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in written]
    done = run_hook("generated", ROOT)
    assert done.returncode == 0, done.stderr
    after = [(path.stat().st_mtime_ns, path.read_bytes()) for path in written]
    assert [data for _, data in after] == [data for _, data in before]
    assert all(new > old for (new, _), (old, _) in zip(after, before, strict=True))


def test_the_workflow_runs_the_same_as_everybody():
    """Besides what it installs, `.ci/run` alone; and that is targets of the Makefile that everybody runs."""
    commands = [step["run"] for step in STEPS if "run" in step]
    assert commands[-1] == ".ci/run" and os.access(ROOT / ".ci/run", os.X_OK)
    for command in commands:
        assert subprocess.run(["bash", "-n", "-c", command], timeout=10).returncode == 0
    targets = re.findall(r"^make ([\w-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert targets == ["test", "test-parts", "docs"]
    for target in targets:
        planned = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert planned.returncode == 0, planned.stderr


def test_the_workflow_installs_the_pythons_that_the_tests_ask_for():
    installing = next(step["run"] for step in STEPS if "uv python install" in step.get("run", ""))
    installed = {"3.11", *re.search(r"uv python install (.*)", installing)[1].split()}  # type: ignore[index]
    assert set(re.findall(r"^run (3\.\d+)", (ROOT / "scripts/pythons.sh").read_text(), re.MULTILINE)) == installed


def test_the_workflow_keeps_reports_that_are_made():
    script = (ROOT / "scripts/run_tests.py").read_text()
    made = {f"build/{name}" for name in re.findall(r'REPORTS / "([\w.]+)"', script)}
    made.add(yaml.safe_load(re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text()))["site_dir"])
    assert set(STEPS[-1]["with"]["path"].split()) <= made
