"""What OSWorld's server makes of commands, paths and windows."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dart_gym.desktops.confinement.file_removal import remove_tree
from dart_gym.desktops.osworld_api.api_commands import (
    BadRequest,
    expand_path,
    find_window,
    program_arguments,
    window_command,
    window_size,
)
from dart_gym.desktops.osworld_api.guest_programs import LIST_DIRECTORY, NO_DIRECTORY

HOME = "/home/user"
WINDOWS = """0x01 0 10 20 300 200 mousepad.Mousepad desktop a.txt - Mousepad
0x02 0 0 0 1024 768 google-chrome.Google-chrome desktop New Tab - Google Chrome
0x03 -1 0 0 640 480 org.gnome.Nautilus.Org.gnome.Nautilus N/A Home
"""


@pytest.mark.parametrize(
    ("request_json", "arguments"),
    [
        ({"command": ["ls", "~/a", "a~/b"]}, ["ls", "/home/user/a", "a~/b"]),
        ({"command": "ls '~/a b'"}, ["ls", "/home/user/a b"]),
        ({"command": "ls ~/a | wc", "shell": True}, ["/bin/sh", "-c", "ls ~/a | wc"]),
        ({"command": ["echo $0", "x"], "shell": True}, ["/bin/sh", "-c", "echo $0", "x"]),
        ({"command": "a", "shell": "true"}, ["/bin/sh", "-c", "a"]),
    ],
)
def test_commands(request_json, arguments):
    assert program_arguments(request_json, HOME) == arguments


@pytest.mark.parametrize("request_json", [{}, {"command": ""}, {"command": [1]}, {"command": "'open"}, {"command": {}}])
def test_no_command_is_refused(request_json):
    with pytest.raises(BadRequest, match="command"):
        program_arguments(request_json, HOME)


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~/a", "/home/user/a"),
        ("~", "/home/user"),
        ("$HOME/a", "/home/user/a"),
        ("${HOME}/$NONE/a", "/home/user/$NONE/a"),
        ("/a~b", "/a~b"),
    ],
)
def test_paths(path, expanded):
    assert expand_path(path, {"HOME": HOME}) == expanded


def test_windows():
    assert window_command({"window_name": "a", "strict": True, "by_class": True}, "a") == ["wmctrl", "-xFa", "a"]
    assert window_command({"window_name": "a"}, "c") == ["wmctrl", "-c", "a"]
    with pytest.raises(BadRequest, match="window_name"):
        window_command({}, "a")
    assert window_size(WINDOWS, "Mousepad") == (300, 200)
    assert window_size(WINDOWS, "google-chrome") == (1024, 768)
    assert window_size(WINDOWS, "org.gnome.nautilus") == (640, 480)
    assert window_size(WINDOWS, "gimp") is None
    assert find_window(WINDOWS, ("b.txt", "a.txt")) == "0x01"
    assert find_window(WINDOWS, ("b.txt",)) is None


def listed(folder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-", str(folder)]
    return subprocess.run(command, input=LIST_DIRECTORY, capture_output=True, text=True, timeout=20)


def test_a_folder_is_listed_whatever_is_in_it(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "up").symlink_to(tmp_path)
    (tmp_path / "a").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "b" / os.fsdecode(b"\xff")).write_text("")
    up = {"type": "directory", "name": "up", "children": []}
    inner = {"type": "directory", "name": "c", "children": [up]}
    outer = {"type": "directory", "name": "b", "children": [inner, {"type": "file", "name": "\udcff"}]}
    files = [{"type": "file", "name": "a"}, outer, {"type": "file", "name": "pipe"}]
    assert json.loads(listed(tmp_path).stdout) == {"type": "directory", "name": tmp_path.name, "children": files}
    assert listed(tmp_path / "a").returncode == NO_DIRECTORY


def test_folders_within_folders_take_no_time(tmp_path):
    at = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    assert "folders within each other" in listed(tmp_path).stderr
    remove_tree(tmp_path)
