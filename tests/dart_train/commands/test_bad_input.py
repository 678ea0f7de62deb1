"""What a person may do wrong, through the real command lines: one message with cause and next step, no traceback."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from dart_train.config.run_config import dump_config, parse_config
from dart_train.run.run_directory import RunDirectory, RunLock

SMALL_MODEL = {"hidden_size": 32, "layers": 1, "vision_hidden_size": 32, "vision_layers": 1}
CONFIG = {
    "name": "r",
    "model": {"path": "tiny", "tiny": SMALL_MODEL},
    "rollout": {"tasks": ["fake/click-button"], "workers": 1},
    "cluster": {"desktops": 1},
}


def call(*command: str, before: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", *command],
        capture_output=True, text=True, timeout=110, env={**os.environ, "COLUMNS": "200", **environment},
    )  # fmt: skip


def assert_said(result: subprocess.CompletedProcess[str], *words: str) -> None:
    text = result.stdout + result.stderr
    assert result.returncode == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def run(config: Path, runs: Path, *overrides: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    options = [word for item in overrides for word in ("--set", item)]
    return call("dart_train", "run", str(config), "--runs-dir", str(runs), "--plain", *options, before=before)


pytestmark = pytest.mark.e2e  # real processes, several seconds each


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.workerz=3", ["rollout.workerz: unknown key; did you mean 'workers'?"]),
        pytest.param("rollout.workers=many", ["rollout.workers", "integer", "'many'"], marks=pytest.mark.slow),
        pytest.param("rollout.workers", ["not of the form key.subkey=value"], marks=pytest.mark.slow),
        ("rollout.tasks=[fake/click-buton]", ["did you mean 'fake/click-button'"]),
        ("agent.format=[ui]", ["agent.format"]),
    ],
)
def test_wrong_settings(config, runs, override, words):
    result = call("dart_train", "run", str(config), "--runs-dir", str(runs), "--dry-run", "--set", override)
    assert_said(result, "error: ", *words)
    assert not runs.exists()


def test_no_such_configuration(config, runs):
    assert_said(run(config.with_name("confg.yaml"), runs), "no configuration", "there are:", str(config))
    assert_said(run(Path(__file__).parent, runs), "is a directory without a config.yaml", "name a run's directory")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("state.json", '{"phases": {"prep', ["state.json is damaged", "to start this run afresh"]),
        ("config.yaml", "name: r\nrollout: {tas", ["config.yaml is damaged", "to start afresh"]),
        ("config.yaml", None, ["config.yaml is missing", "--dry-run"]),
    ],
)
def test_a_run_directory_with_damaged_files(config, runs, file, content, words):
    directory = RunDirectory(runs / "r")
    directory.create()
    directory.config.write_text(dump_config(parse_config(CONFIG)))
    (directory.root / "state.json").write_text('{"phases": {}, "lives": 1}')
    (directory.root / file).unlink()
    if content is not None:
        (directory.root / file).write_text(content)
    assert_said(run(config, runs), *words)


@pytest.mark.thorough
def test_a_run_directory_in_use(config, runs):
    directory = RunDirectory(runs / "r")
    directory.create()
    with RunLock(directory):
        assert_said(run(config, runs), f"in use by process {os.getpid()}", "--name")


@pytest.mark.thorough
def test_a_file_in_the_way(config, runs):
    runs.write_text("")
    assert_said(run(config, runs), "cannot write to", "a file is in the way")


@pytest.mark.thorough
def test_a_read_only_directory(config, runs):
    runs.mkdir()
    read_only = ("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--ro-bind", str(runs), str(runs))
    assert_said(run(config, runs, before=read_only), "read-only", "--runs-dir")


@pytest.mark.thorough
def test_a_checkpoint_without_its_files(config, runs, tmp_path):
    arguments = ("--runs-dir", str(runs), "--label", "x", "--model", str(tmp_path), "--url", "ws+unix:///x.sock")
    assert_said(call("dart_train", "evaluate", str(config), *arguments), "has no config.json", "restore it")


@pytest.mark.slow
@pytest.mark.train
def test_files_that_must_not_grow(config, runs):
    limit = 100_000

    def forbid() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "dart_train", "process", str(config), "prepare", "--runs-dir", str(runs)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, preexec_fn=forbid)
    assert_said(result, "File too large", "ulimit -f")


@pytest.mark.slow
@pytest.mark.e2e
def test_a_full_disk(config, runs):
    """64 KiB hold the run's directory, but neither its model nor its data base."""
    runs.mkdir()
    small = ("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--size", "65536", "--tmpfs", str(runs))
    assert_said(run(config, runs, "rollout.unavailable_timeout_s=3", before=small), "free some")


@pytest.mark.thorough
@pytest.mark.e2e
def test_a_modules_error_is_what_the_launcher_says(config, runs):
    result = run(config, runs, "agent.min_pixels=20000000")  # above what the tiny model takes
    assert_said(result, "error: ", "agent.min_pixels", "logs/prepare.log")
    log = (runs / "r" / "logs" / "prepare.log").read_text()
    assert log.count("--- ") == 1  # it was not tried again


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.train
def test_a_cluster_that_nobody_serves(config, runs):
    result = run(config, runs, f"cluster.url=ws+unix://{runs}/nobody.sock")
    assert_said(result, "cannot reach the cluster", "is `dart-gym serve` running there?")


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_an_address_in_use(tmp_path, kind):
    family = socket.AF_INET if kind == "port" else socket.AF_UNIX
    with socket.socket(family) as taken:
        taken.bind(("127.0.0.1", 0) if kind == "port" else str(tmp_path / "s"))
        taken.listen()
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}" if kind == "port" else f"ws+unix://{tmp_path}/s"
        assert_said(call("dart_gym.commands.gym_cli", "serve", "--listen", url), "in use", "--listen")


def path_without(folder: Path, *programs: str) -> str:
    """A PATH with all programs of the present one but those named."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep)[::-1]:
        for program in Path(place).glob("*"):
            link = folder / program.name
            link.unlink(missing_ok=True)
            if program.name not in programs:
                link.symlink_to(program)
    return str(folder)


@pytest.mark.thorough
def test_no_bubblewrap(tmp_path):
    path = path_without(tmp_path / "bin", "bwrap")
    result = call("dart_agent.commands.agent_cli", "run", "miniwob/click-test", PATH=path)
    assert_said(result, "bubblewrap is not installed", "apt-get install bubblewrap", "--isolation none")


@pytest.mark.thorough
def test_forbidden_namespaces(tmp_path):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # desktops' users cannot look into pytest's directory
        os.chmod(place, 0o755)
        path = path_without(Path(place) / "bin", "bwrap")
        bwrap = Path(place) / "bin" / "bwrap"
        bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        bwrap.chmod(0o755)
        result = call("dart_agent.commands.agent_cli", "run", "miniwob/click-test", PATH=path)
    assert_said(result, "No permissions to create new namespace", "next step")


@pytest.mark.thorough
@pytest.mark.desktop
def test_a_browser_that_does_not_start():
    named = shutil.which("false")
    result = call("dart_agent.commands.agent_cli", "run", "miniwob/click-test", DART_GYM_CHROMIUM=str(named))
    text = result.stdout + result.stderr
    assert "Traceback" not in text
    assert "hromium" in text and "env_error" in text
