"""What OSWorld's server makes of commands, paths and windows."""

import pytest

from dart_gym.desktops.osworld_api.api_commands import (
    BadRequest,
    expand_path,
    find_window,
    program_arguments,
    window_command,
    window_size,
)

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
