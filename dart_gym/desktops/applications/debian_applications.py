#!/usr/bin/env python3
"""The applications of OSWorld on Debian: which package has which program, and what it is for.

`scripts/setup.sh apps` installs what `python3 apps.py packages` prints, and `dart-gym doctor` looks for what is here.
So this file is a program of its own too: it needs the standard library only, and imports nothing of this package.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Application:
    """A part of the machine that OSWorld's tasks expect.

    Attributes:
        program: what must be on the PATH; "" for what is no program.
        aliases: other programs of the same packages, and the names of OSWorld's `related_apps`.
    """

    name: str
    program: str
    packages: tuple[str, ...]
    needed_for: str
    aliases: tuple[str, ...] = ()


_EVERY = "every OSWorld task"
APPLICATIONS = (
    Application("LibreOffice Calc", "localc", ("libreoffice-calc", "libreoffice-gtk3"), "libreoffice_calc tasks",
                ("libreoffice", "soffice", "libreoffice_calc", "libreoffice calc", "calc", "excel")),
    Application("LibreOffice Writer", "lowriter", ("libreoffice-writer",), "libreoffice_writer tasks",
                ("libreoffice_writer", "libreoffice writer", "writer", "word")),
    Application("LibreOffice Impress", "loimpress", ("libreoffice-impress",), "libreoffice_impress tasks",
                ("libreoffice_impress", "libreoffice impress", "ppt")),
    Application("GIMP", "gimp", ("gimp",), "gimp tasks"),
    Application("GIMP's themes", "", ("gtk2-engines-pixbuf",), "GIMP's dialogs, white on white without it"),
    Application("VLC", "vlc", ("vlc", "vlc-plugin-base", "vlc-plugin-qt", "vlc-plugin-access-extra"), "vlc tasks",
                ("cvlc", "vlc_player")),
    Application("Thunderbird", "thunderbird", ("thunderbird",), "thunderbird tasks"),
    Application("Chromium", "chromium", ("chromium",), "chrome tasks (as google-chrome)",
                ("google-chrome", "google-chrome-stable", "chrome", "browser")),
    Application("Files", "nautilus", ("nautilus", "gvfs"), "os and multi_apps tasks"),
    Application("Terminal", "gnome-terminal", ("gnome-terminal",), "os and multi_apps tasks", ("terminal",)),
    Application("Text Editor", "gedit", ("gedit",), "os and multi_apps tasks"),
    Application("Document Viewer", "evince", ("evince",), "multi_apps tasks", ("pdf",)),
    Application("Image Viewer", "eog", ("eog",), "multi_apps tasks", ("image",)),
    Application("Videos", "totem", ("totem",), "multi_apps tasks (VLC is to take its place)", ("ubuntu_media_player",)),
    Application("Archive Manager", "file-roller", ("file-roller",), "multi_apps tasks"),
    Application("Calculator", "gnome-calculator", ("gnome-calculator", "galculator"), "the bundled tasks",
                ("galculator", "calculator")),
    Application("Screenshot", "gnome-screenshot", ("gnome-screenshot",), "pyautogui's screenshots"),
    Application("settings", "gsettings", ("libglib2.0-bin", "gsettings-desktop-schemas", "gnome-shell-common"),
                "os tasks"),
    Application("Settings", "gnome-control-center", ("gnome-control-center",), "os tasks, by mouse"),
    Application("panel and dock", "tint2", ("tint2",), "desktops with a panel"),
    Application("dconf", "dconf", ("dconf-cli", "dconf-gsettings-backend"), _EVERY),
    Application("sound", "pulseaudio", ("pulseaudio",), "os and vlc tasks"),
    Application("sound control", "pactl", ("pulseaudio-utils",), "os tasks", ("amixer",)),
    Application("wmctrl", "wmctrl", ("wmctrl",), "activate_window and close_window steps"),
    Application("socat", "socat", ("socat",), "chrome tasks (they lead port 9222 to DevTools)"),
    Application("xdg-open", "xdg-open", ("xdg-utils", "shared-mime-info", "desktop-file-utils"), "open steps",
                ("xdg-mime", "xdg-settings", "update-desktop-database", "gio")),
    Application("xdg-user-dir", "xdg-user-dir", ("xdg-user-dirs",), "nautilus"),
    Application("jq", "jq", ("jq",), "chrome tasks"),
    Application("bc", "bc", ("bc",), "os tasks"),
    Application("unzip", "unzip", ("unzip",), "vs_code tasks"),
    Application("zip", "zip", ("zip",), "multi_apps tasks"),
    Application("xsel", "xsel", ("xsel",), "multi_apps tasks"),
    Application("xclip", "xclip", ("xclip",), "multi_apps tasks"),
    Application("ffmpeg", "ffmpeg", ("ffmpeg",), "recordings, vlc tasks", ("ffprobe",)),
    Application("ImageMagick", "convert", ("imagemagick",), "pictures in a terminal",
                ("identify", "mogrify", "compare", "composite", "montage")),
    Application("PDF tools", "pdftotext", ("poppler-utils",), "PDF files in a terminal",
                ("pdfinfo", "pdfimages", "pdfseparate", "pdfunite", "pdftoppm")),
    Application("curl", "curl", ("curl",), "multi_apps tasks"),
    Application("wget", "wget", ("wget",), "multi_apps tasks"),
    Application("git", "git", ("git",), "multi_apps tasks"),
    Application("vim", "vim", ("vim",), "os tasks", ("vi",)),
    Application("nano", "nano", ("nano",), "files in a terminal"),
    Application("tree", "tree", ("tree",), "folders in a terminal"),
    Application("file", "file", ("file",), "files in a terminal"),
    Application("expect", "expect", ("expect",), "os tasks (their set-up installs it)"),
    Application("sysstat", "sar", ("sysstat",), "os tasks (their set-up installs it)"),
    Application("pyautogui's parts", "", ("python3-xlib", "python3-pil", "python3-tk"), "actions of OSWorld's own kind",
                ("python", "python3")),
    Application("accessibility", "", ("at-spi2-core", "gir1.2-atspi-2.0", "python3-pyatspi", "python3-gi",
                                      "python3-lxml"), "accessibility trees"),
    Application("CJK font", "", ("fonts-noto-cjk",), "Chinese, Japanese and Korean text"),
    # Ubuntu's, and those of the same widths as Microsoft's: Calibri, Cambria, Arial, Times New Roman, Courier New.
    Application("fonts", "", ("fonts-crosextra-carlito", "fonts-crosextra-caladea", "fonts-liberation",
                              "fonts-freefont-ttf", "fonts-urw-base35", "fonts-dejavu-core", "fonts-dejavu-extra",
                              "fonts-noto-color-emoji"), "documents with the lines and pages of OSWorld"),
    Application("pointers", "", ("yaru-theme-icon",), "Ubuntu's pointer"),
)  # fmt: skip
ABSENT = {
    "code": "VS Code is not in Debian",
    "vs_code": "VS Code is not in Debian",
    "vscode": "VS Code is not in Debian",
}
"""Programs of OSWorld's machine that this one lacks, with the reason."""


def packages() -> list[str]:
    """All Debian packages of the applications, in order."""
    return list(dict.fromkeys(package for application in APPLICATIONS for package in application.packages))


def application_of(program: str) -> Application | None:
    """The application that a program (its name, path, or an app's name in OSWorld) belongs to; None if unknown."""
    name = program.rsplit("/", 1)[-1].lower()
    for application in APPLICATIONS:
        if name == application.program or name in application.aliases:
            return application
    return None


def program_of_package(package: str) -> str | None:
    """Return the program by which an installed package is known, "" if it is missing, None for other packages."""
    programs = (application.program for application in APPLICATIONS if package in application.packages)
    return next(programs, None)


def advice(program: str) -> str:
    """Return what to do about a missing program, as the end of a message."""
    if (reason := ABSENT.get(program.rsplit("/", 1)[-1])) is not None:
        return f"{reason}; tasks that need it cannot run here"
    application = application_of(program)
    if application is None:
        return "install it, or correct its name"
    return f"apt-get install {' '.join(application.packages)}"


def missing(which: Callable[[str], str | None] = shutil.which) -> list[Application]:
    """The applications whose program is not on this machine."""
    return [application for application in APPLICATIONS if application.program and which(application.program) is None]


if __name__ == "__main__":
    if sys.argv[1:] != ["packages"]:
        sys.exit(f"usage: {sys.argv[0]} packages")
    print(*packages(), sep="\n")
