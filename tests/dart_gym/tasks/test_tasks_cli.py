"""The commands `dart-gym tasks ...`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from osworld_tasks import BUNDLED, osworld_tasks
from typer.testing import CliRunner

from dart_gym.commands.gym_cli import app
from dart_gym.tasks.catalog.registry import read_suite
from dart_gym.tasks.requirements.mirror import wanted
from dart_gym.tasks.setup.download_cache import DownloadCache
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub
from scripts.failures.world import write_fetch

pytestmark = pytest.mark.process

runner = CliRunner()


def run(*arguments: str):
    return runner.invoke(app, ["tasks", *arguments])


def test_tasks_of_a_suite_or_a_directory_are_listed():
    assert run("list", "fake").output.split() == ["fake/click-button", "fake/two-steps"]
    assert "fake/two-steps" in run("list").output.split()
    lines = run("list", str(BUNDLED)).output.splitlines()
    assert len(lines) == 54
    assert any(line.startswith("os/c288e301-e626-4b98-a1ab-159dcb162af5\tPlease set the default") for line in lines)


def test_a_task_is_shown_with_what_keeps_it_from_running(tmp_path):
    path = next(path for path in read_suite(BUNDLED) if path.stem.startswith("06fe7178"))
    result = run("list", str(path))
    assert json.loads(result.stdout) == json.loads(path.read_text(encoding="utf-8"))
    assert "skipped: live web: the task asks for a proxy" in result.stderr
    target = tmp_path / "task.json"
    assert json.loads(run("list", "fake/two-steps", "--json", str(target)).stdout)["id"] == "two-steps"
    assert json.loads(target.read_text())["id"] == "two-steps"


def test_check_counts_by_domain_and_tells_reasons(tmp_path):
    result = run("check", str(osworld_tasks()), "--cache", str(tmp_path), "--parts", "--reasons")
    assert result.exit_code == 0, result.output
    for text in ("runnable", "not mirrored", "live web", "VS Code", "googledrive", "chrome_open_tabs", "multi_apps/"):
        assert text in result.output


def test_mirror_imports_what_a_directory_has_and_says_what_is_missing(tmp_path):
    files = wanted(read_suite(BUNDLED).values())
    hub = tmp_path / "hub"
    for url in files:
        path = hub / url.split("/resolve/main/", 1)[1].split("?", 1)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(url)
    first = next(iter(files))
    (hub / first.split("/resolve/main/", 1)[1].split("?", 1)[0]).unlink()
    arguments = ["mirror", str(BUNDLED), "--cache", str(tmp_path / "cache"), "--from", str(hub), "--offline"]
    result = run(*arguments)
    assert result.exit_code == 1 and f"{len(files) - 1} imported" in result.stdout and "1 missing" in result.stdout
    assert first in result.stderr
    cache = DownloadCache(tmp_path / "cache")
    assert all((cache.find(url) is None) == (url == first) for url in files)
    assert f"{len(files) - 1} present" in run(*arguments).stdout
    table = run("check", str(BUNDLED), "--cache", str(tmp_path / "cache"), "--reasons").output
    assert table.count("not mirrored: 1 files of huggingface.co") == sum(
        first in wanted([task]) for task in read_suite(BUNDLED).values()
    )


@pytest.mark.parametrize("options", [[], ["--cache", "cache"]])
def test_mirror_fetches_from_hosts_that_are_allowed(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DART_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DART_GYM_FETCH_HOSTS", "127.0.0.1")
    with stub(Protocol.HTTP, Situation.SOME_LOST) as web:
        write_fetch(tmp_path / "tasks", f"http://127.0.0.1:{web.port}", 9)
        result = run("mirror", "tasks", *options)
    assert result.exit_code == 1 and "4 downloaded, 5 missing" in result.stdout, result.output
    assert result.stderr.count(": the server says 500") == 5 and result.stderr.count("http://") == 9


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["list", "/no/such"], "unknown suite"),
        (["check", "/no/such"], "no task files"),
        (["list", "/no/such.json"], "cannot read"),
        (["list", "fake/tow-steps"], "unknown task 'fake/tow-steps'; did you mean 'fake/two-steps'"),
        (["list", "fake/two-steps", "--certified"], "is one task"),
        (["list", "fake", "--cache", "x"], "name a task"),
        (["mirror", str(BUNDLED), "--from", "/no/such"], "no directory"),
    ],
)
def test_a_users_mistake_is_one_line(arguments, match):
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "tasks", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert result.returncode != 0 and match in result.stderr and "Traceback" not in result.stderr
