"""Which package has which program, and which programs a task of OSWorld needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dart_gym.desktops import apps


def test_the_list_of_packages_needs_no_other_package():
    command = [sys.executable, "-I", "-S", apps.__file__, "packages"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == apps.packages()
    assert {"gimp", "vlc", "libreoffice-impress", "python3-pyatspi"} <= set(apps.packages())
    assert len(set(apps.packages())) == len(apps.packages())


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/usr/bin/thunderbird", "Thunderbird"),
        ("google-chrome", "Chromium"),
        ("libreoffice calc", "LibreOffice Calc"),
        ("VLC", "VLC"),
        ("soffice", "LibreOffice Calc"),
    ],
)
def test_programs_belong_to_applications(program, name):
    application = apps.application_of(program)
    assert application is not None and application.name == name


def test_names_are_unambiguous():
    names = [name for application in apps.APPLICATIONS for name in (application.program, *application.aliases) if name]
    assert len(set(names)) == len(names) and not set(names) & set(apps.ABSENT)


def test_the_programs_of_a_task_come_from_all_that_it_runs():
    task = {
        "related_apps": ["Chrome", "libreoffice_calc"],
        "config": [
            {"type": "launch", "parameters": {"command": ["/usr/bin/thunderbird"]}},
            {"type": "launch", "parameters": {"command": "VLC_VERBOSE=-1 vlc --x &", "shell": "true"}},
            {"type": "chrome_open_tabs", "parameters": {"urls_to_open": []}},
            {"type": "execute", "parameters": {"command": "echo p | sudo -S apt install jq -y && jq .", "shell": True}},
            {"type": "execute", "parameters": {"command": ["bash", "-c", "cd /tmp; gimp x.png"]}},
            {"type": "sleep", "parameters": {"seconds": 1}},
        ],
        "evaluator": {"postconfig": [{"type": "execute", "parameters": {"command": ["pkill", "chrome"]}}]},
    }
    wanted = {"chrome", "libreoffice_calc", "thunderbird", "vlc", "google-chrome", "echo", "apt", "jq", "bash", "cd"}
    assert apps.programs_of(task) == wanted | {"gimp", "pkill"}


def test_packages_are_wanted_by_tasks_most_wanted_first():
    tasks = {
        "a": {"related_apps": ["gimp"]},
        "b": {"related_apps": ["gimp", "vlc"]},
        "c": {"related_apps": ["os"]},
    }
    gimp, vlc, jq = (apps.application_of(name) for name in ("gimp", "vlc", "jq"))
    assert list(apps.tasks_by_package(tasks, [vlc, jq, gimp]).items()) == [
        ("gimp", ["a", "b"]),
        ("vlc vlc-plugin-base vlc-plugin-qt vlc-plugin-access-extra", ["b"]),
    ]
    assert apps.tasks_by_package(tasks, []) == {}


def test_advice_names_the_package_or_says_that_there_is_none():
    assert apps.advice("/usr/bin/gimp").startswith("apt-get install gimp ")
    assert "not in Debian" in apps.advice("code")
    assert "correct its name" in apps.advice("no-such-program")


def test_missing_applications_are_those_not_on_the_path():
    found = apps.missing(lambda program: None if program == "gimp" else f"/usr/bin/{program}")
    assert [application.name for application in found] == ["GIMP"]
