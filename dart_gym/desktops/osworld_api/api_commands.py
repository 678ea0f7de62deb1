"""What OSWorld's server makes of the commands and paths in a request. Pure.

Source: OSWorld's in-VM server, as its controllers and getters use it.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any


class BadRequest(Exception):
    """The client asked for something that no server could do; becomes status 400."""


def program_arguments(data: Mapping[str, Any], home: str) -> list[str]:
    """The program and arguments of a request's `command` and `shell`.

    Text without a shell is split as a shell would; of a list with a shell the first item is the script, the others are
    its positional parameters (as `subprocess` does it); `~/` at the start of an argument is the home directory.

    Raises:
        BadRequest: there is no command, or it is neither text nor a list of texts.
    """
    shell = data.get("shell", False)
    command = data.get("command", "" if shell else [])
    if isinstance(command, str):
        words = [command] if shell else _split(command)
    elif isinstance(command, list) and all(isinstance(word, str) for word in command):
        words = command
    else:
        raise BadRequest(f"'command' must be text or a list of texts, got {command!r}")
    if not words or not words[0]:
        raise BadRequest("'command' is empty")
    if shell:
        return ["/bin/sh", "-c", *words]
    return [home + word[1:] if word.startswith("~/") else word for word in words]


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise BadRequest(f"'command' cannot be split into words ({error}): {command!r}") from error


def expand_path(path: str, environment: Mapping[str, str]) -> str:
    """A path with `~` and `$VARIABLE` replaced by what they are inside the desktop; unknown variables stay."""
    home = environment.get("HOME", "/home/user")
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: environment.get(found[1] or found[2], found[0]), path)


def window_command(data: Mapping[str, Any], verb: str) -> list[str]:
    """Return the `wmctrl` call that activates ("a") or closes ("c") a window.

    Raises:
        BadRequest: if the request has no window name.
    """
    name = data.get("window_name")
    if not isinstance(name, str) or not name:
        raise BadRequest("window_name required")
    flags = ("x" if data.get("by_class", False) else "") + ("F" if data.get("strict", False) else "")
    return ["wmctrl", f"-{flags}{verb}", name]


def window_size(listing: str, app_class: str) -> tuple[int, int] | None:
    """Width and height of the first window of a class, from lines of `wmctrl -lGx`; None without such a window."""
    wanted = app_class.lower()
    for line in listing.splitlines():
        fields = line.split(maxsplit=8)
        if len(fields) < 7:
            continue
        name = fields[6].lower()  # both parts may hold dots, so that they cannot be told apart for certain
        if name.startswith(wanted + ".") or name.endswith("." + wanted):
            return int(fields[4]), int(fields[5])
    return None


def find_window(listing: str, names: tuple[str, ...]) -> str | None:
    """Id of the first window of `wmctrl -l` whose line holds one of the names."""
    for line in listing.splitlines():
        if any(name in line for name in names):
            return line.split()[0]
    return None
