"""Which package has which program, and which programs a task of OSWorld needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dart_gym.desktops.applications import debian_applications


def test_the_list_of_packages_needs_no_other_package():
    command = [sys.executable, "-I", "-S", debian_applications.__file__, "packages"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == debian_applications.packages()
    assert {"gimp", "vlc", "libreoffice-impress", "python3-pyatspi"} <= set(debian_applications.packages())
    assert len(set(debian_applications.packages())) == len(debian_applications.packages())


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
    application = debian_applications.application_of(program)
    assert application is not None and application.name == name


def test_names_are_unambiguous():
    names = [
        name
        for application in debian_applications.APPLICATIONS
        for name in (application.program, *application.aliases)
        if name
    ]
    assert len(set(names)) == len(names) and not set(names) & set(debian_applications.ABSENT)


def test_advice_names_the_package_or_says_that_there_is_none():
    assert debian_applications.advice("/usr/bin/gimp") == "apt-get install gimp"
    assert "not in Debian" in debian_applications.advice("code")
    assert "correct its name" in debian_applications.advice("no-such-program")


def test_missing_applications_are_those_not_on_the_path():
    found = debian_applications.missing(lambda program: None if program == "gimp" else f"/usr/bin/{program}")
    assert [application.name for application in found] == ["GIMP"]
