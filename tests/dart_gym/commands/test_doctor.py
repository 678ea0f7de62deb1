"""`dart-gym doctor`: what is found, what is missing, and what to do about it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from dart_gym.commands import doctor
from dart_gym.core import project_pages
from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.desktops.applications.browser import browser_program
from dart_gym.desktops.sandbox import sandbox_end


def program(folder: Path, name: str, text: str = "#!/bin/sh\nexit 0\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def bare_path(monkeypatch) -> Iterator[Path]:
    """A PATH with nothing on it, which everybody can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}/bin")
        monkeypatch.delenv("DART_GYM_CHROMIUM", raising=False)
        yield Path(directory, "bin")


def examined() -> tuple[int, str]:
    console = Console(width=200, file=io.StringIO())
    status = doctor.main(console)
    return status, console.file.getvalue()


def test_every_finding_that_is_not_ok_says_what_to_do(bare_path):
    findings = doctor.examine()
    missing = {finding.name: finding for finding in findings if not finding.ok}
    assert set(doctor.PROGRAMS) | {"Chromium", "sandbox"} <= set(missing)
    assert all(finding.remedy for finding in missing.values())
    assert missing["bwrap"].remedy == "apt-get install bubblewrap"
    assert "apt-get install bubblewrap" in missing["sandbox"].remedy


def test_a_bare_machine_is_told_everything_at_once(bare_path):
    status, text = examined()
    assert status == 1
    assert "apt-get install xvfb" in text and "apt-get install chromium" in text and "`make setup`" in text


def test_a_wheel_is_told_what_apt_and_pip_install(bare_path, monkeypatch):
    monkeypatch.setattr(project_pages, "in_checkout", lambda: False)
    status, text = examined()
    assert status == 1 and "make " not in text
    (packages,) = re.findall(r"Next step: apt-get install ([\w -]+)(?:;|$)", " ".join(text.split()))
    assert {*doctor.PROGRAMS.values(), "chromium"} == {*packages.split()}


def test_brackets_in_remedies_are_shown(monkeypatch):
    monkeypatch.setattr(doctor, "TRAIN_PACKAGES", ("torch", "no-such-package"))
    assert "pip install 'dart-gui[train]'" in examined()[1]


def lacking(part: str, name: str = "x", **fields) -> doctor.Finding:
    return doctor.Finding(name, False, "not installed", "pip install x", part=part, **fields)


def test_what_nobody_asked_for_is_not_missing(monkeypatch):
    """A light install has no torch, no vLLM and not OSWorld's packages, but maybe a text editor."""
    editor = doctor.Finding("Text Editor", True, "/usr/bin/gedit", part=doctor.OSWORLD)
    there = [doctor.Finding("Xvfb", True, "there"), editor]
    monkeypatch.setattr(doctor, "examine", lambda: [*there, lacking("train"), lacking("osworld"), lacking("vllm")])
    status, text = examined()
    assert status == 0 and "missing" not in text and text.count("not requested: ") == 3
    assert "lack" not in text


@pytest.mark.parametrize("part", ["train", "osworld", "vllm"])
def test_what_somebody_asks_for_is_missing(part, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: [lacking(part, "that", optional=True)])
    console = Console(width=200, file=io.StringIO())
    assert doctor.main(console, asked=[part]) == 1 and "1 missing: that." in console.file.getvalue()
    with pytest.raises(ConfigurationError, match="no part 'tain'; did you mean 'train'"):
        doctor.main(console, asked=["tain"])


def test_half_of_a_part_is_missing(monkeypatch):
    half = [doctor.Finding("torch", True, "2.13", part=doctor.TRAIN), lacking("train", "sqlalchemy")]
    monkeypatch.setattr(doctor, "examine", lambda: half)
    status, text = examined()
    assert status == 1 and "1 missing: sqlalchemy." in text


def test_refused_calls_are_those_of_the_users_own_desktops(tmp_path, monkeypatch):
    """Root's file has those of all who became root, and of all their installations."""
    monkeypatch.setattr(sandbox_end, "kept_directory", lambda: tmp_path)
    (tmp_path / sandbox_end.REFUSED_FILE).write_text('"of an earlier version"\n')
    monkeypatch.setenv("SUDO_UID", "4242")
    sandbox_end.keep_refused(["theirs: bpf"])
    monkeypatch.delenv("SUDO_UID")
    assert sandbox_end.kept_refused() == []
    sandbox_end.keep_refused(["mine: ptrace", "theirs: bpf"])
    sandbox_end.keep_refused(["mine: ptrace"])
    assert doctor.check_refused().detail == "refused so far: mine: ptrace, theirs: bpf"
    monkeypatch.setattr(sys, "prefix", "/opt/another")
    assert doctor.check_refused().ok


def test_a_machine_with_everything_is_ready(monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Finding("all", True, "there", "never shown")])
    status, text = examined()
    assert status == 0 and "This machine is ready." in text and "never shown" not in text


def test_snaps_are_passed_over(bare_path, tmp_path):
    snap = program(tmp_path / "snap" / "bin", "chromium")
    bare_path.mkdir(exist_ok=True)
    (bare_path / "chromium").symlink_to(snap)
    program(bare_path, "chromium-browser", '#!/bin/sh\nexec /snap/bin/chromium "$@"\n')
    with pytest.raises(MissingDependencyError, match="snap"):
        browser_program()
    chrome = program(bare_path, "google-chrome-stable")
    assert browser_program() == str(chrome)
    assert doctor.check_browser() == doctor.Finding(
        "Chromium", True, str(chrome), needed_for="the miniwob suite, chrome tasks"
    )


def test_a_browser_can_be_named(bare_path, tmp_path, monkeypatch):
    program(bare_path, "chromium")
    named = program(tmp_path / "opt", "my-chrome")
    monkeypatch.setenv("DART_GYM_CHROMIUM", str(named))
    assert browser_program() == str(named)
    monkeypatch.setenv("DART_GYM_CHROMIUM", "/no/such/chrome")
    finding = doctor.check_browser()
    assert not finding.ok and "/no/such/chrome is no program" in finding.detail and "unset" in finding.remedy


def test_refused_namespaces_are_explained(bare_path):
    for name in ("setpriv", "unshare"):
        program(bare_path, name, f'#!/bin/sh\nexec /usr/bin/{name} "$@"\n')
    program(bare_path, "bwrap", "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    finding = doctor.check_sandbox_works()
    assert not finding.ok and "No permissions to create new namespace" in finding.detail
    assert "--isolation none" in finding.remedy


@pytest.mark.parametrize(
    ("check", "limit"), [(doctor.check_memory, "MIN_MEMORY_GIB"), (doctor.check_disk, "MIN_DISK_GIB")]
)
def test_too_little_room_is_a_finding(monkeypatch, check, limit):
    monkeypatch.setattr(doctor, limit, 1e9)
    assert not check().ok and "GiB" in check().remedy
    monkeypatch.setattr(doctor, limit, 0.0)
    assert check().ok


@pytest.mark.process
def test_the_command_ends_with_1_where_something_is_missing(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 1 and "missing" in result.stdout and "Traceback" not in result.stderr


def test_applications_of_osworld_are_optional(monkeypatch):
    there = [doctor.Finding("Xvfb", True, "there"), doctor.Finding("pyautogui", True, "there", part=doctor.OSWORLD)]
    monkeypatch.setattr(doctor, "examine", lambda: [*there, lacking("osworld", "GIMP", optional=True)])
    status, text = examined()
    assert status == 0 and "lack GIMP. `make apps`" in text and "This machine is ready." in text


def test_tasks_are_told_what_they_wait_for(bare_path, tmp_path):
    def starts(name, command, **parts) -> None:
        step = {"type": "launch", "parameters": {"command": command, "shell": isinstance(command, str)}}
        task = {"id": name, "instruction": "Crop.", "config": [step], **parts}
        (tmp_path / "tasks/gimp").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks/gimp" / f"{name}.json").write_text(json.dumps(task))

    starts("one", ["gimp"])
    starts("two", "cat <<E; x=$(( 1 + (2) ));  (cd /tmp; gimp -n) || exit 1\nvlc; jq\nE")
    starts("three", "gimp x | vlc -")
    starts("four", ["true"], related_apps=["vlc", "chrome"])  # names them, and needs none
    starts("five", "evince a || eog a")
    (tmp_path / "tasks/gimp/index.json").write_text(json.dumps({"gimp": ["one"]}))
    vlc = "vlc vlc-plugin-base vlc-plugin-qt vlc-plugin-access-extra"
    assert doctor.waiting_tasks(tmp_path / "tasks") == {
        "gimp": ["osworld/one", "osworld/three", "osworld/two"],
        vlc: ["osworld/three"],
        "eog": ["osworld/five"],
    }
    console = Console(width=200, file=io.StringIO())
    doctor.main(console, tmp_path / "tasks")
    assert "3  apt-get install gimp   (osworld/one, osworld/three, osworld/two)" in console.file.getvalue()


def test_a_directory_without_tasks_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="no OSWorld tasks"):
        doctor.waiting_tasks(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigurationError, match="broken.json"):
        doctor.waiting_tasks(tmp_path)


def test_the_evaluator_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("DART_GYM_EVALUATOR", str(tmp_path / "none"))
    finding = doctor.check_evaluator()
    assert not finding.ok and "is not installed" in finding.detail and "evaluator install" in finding.remedy


def test_limits_without_control_groups_are_told_with_the_next_step(monkeypatch):
    monkeypatch.setattr(doctor, "group_places", lambda: [])
    finding = doctor.check_limits()
    assert not finding.ok and finding.optional and "each process" in finding.detail and "Delegate=yes" in finding.remedy


def test_refused_system_calls_are_named(monkeypatch):
    monkeypatch.setattr(doctor, "kept_refused", lambda: ["gimp: ptrace"])
    finding = doctor.check_refused()
    assert not finding.ok and finding.optional and "gimp: ptrace" in finding.detail
    monkeypatch.setattr(doctor, "kept_refused", list)
    assert doctor.check_refused().ok


@pytest.mark.parametrize(
    ("part", "words"),
    [("options", "is too old: it has no --disable-userns"), ("seccomp", "this kernel has no seccomp")],
)
def test_a_machine_with_half_the_protection_gets_no_sandbox(bare_path, monkeypatch, part, words):
    text = "--size --as-pid-1 --info-fd" + ("" if part == "options" else " --disable-userns")
    program(bare_path, "bwrap", f"#!/bin/sh\necho '{text}'\n")
    monkeypatch.setattr("dart_gym.desktops.confinement.bubblewrap.SECCOMP", str(bare_path / "none"))
    finding = doctor.check_sandbox_works()
    assert not finding.ok and words in finding.detail and "--isolation none" in finding.remedy
