"""What the guest of a desktop is to start, and in which environment. Pure."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are as the programs of a desktop see them.

    Attributes:
        isolated: whether they are in a sandbox, with a display and paths of their own.
    """

    isolated: bool
    home: str = "/home/user"
    shared: str = "/run/desktop"
    settings: str = "/run/guest"
    tmp: str = "/tmp"
    runtime: str = "/run/user/1000"


def guest_plan(places: Places, screen: tuple[int, int], listen_fd: int) -> dict[str, Any]:
    """Return what `guest.py` is to start."""
    width, height = screen
    # a sandbox has a display of its own; on the machine's, only who knows the cookie may look at it
    display = [":0"] if places.isolated else ["-auth", f"{places.settings}/cookie"]
    bus = f"{places.runtime}/bus" if places.isolated else f"{places.shared}/bus"
    return {
        "listen_fd": listen_fd,
        "isolated": places.isolated,
        "log_dir": f"{places.shared}/log",
        "display_server": [
            *("Xvfb", *display, "-screen", "0", f"{width}x{height}x24", "-dpi", "96", "-fbdir", places.shared),
            *("-nolisten", "tcp", "-extension", "GLX", "-noreset", "-s", "0", "-maxclients", "2048", "-displayfd"),
        ],
        "message_bus": [
            *("dbus-daemon", "--session", f"--address=unix:path={bus}"),
            *("--nofork", "--nopidfile", "--nosyslog", "--print-address"),
        ],
        "window_manager": ["openbox", "--sm-disable", "--config-file", f"{places.settings}/openbox.xml"],
    }


def guest_environment(places: Places, extra: dict[str, str]) -> dict[str, str]:
    """Environment of everything inside: nothing of the host's (which may hold secrets) but the search path."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/games",
        "HOME": places.home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": places.tmp,
        "XDG_RUNTIME_DIR": places.runtime,
        "XDG_SESSION_TYPE": "x11",
        "XDG_CURRENT_DESKTOP": "GNOME",
        "GSK_RENDERER": "cairo",  # else GTK 4 draws by OpenGL in software: seconds instead of milliseconds a frame
        "NO_AT_BRIDGE": "1",  # the accessibility bus costs each program a start; a profile can switch it on
        **({"DISPLAY": ":0"} if places.isolated else {"XAUTHORITY": f"{places.settings}/cookie"}),
        **extra,
    }


def cookie_file(cookie: bytes) -> bytes:
    """Content of an Xauthority file with one MIT-MAGIC-COOKIE-1 for every display (FamilyWild)."""
    fields = (b"", b"", b"MIT-MAGIC-COOKIE-1", cookie)
    return b"\xff\xff" + b"".join(len(field).to_bytes(2, "big") + field for field in fields)


def account_files(number: int, home: str) -> dict[str, str]:
    """Name -> content of the files in /etc that know the user of a desktop, and nobody else but root."""
    return {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:{number}:{number}:user:{home}:/bin/bash\n",
        "group": f"root:x:0:\nuser:x:{number}:\n",
    }
