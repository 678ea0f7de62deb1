"""The profile "osworld": the machine that OSWorld's tasks expect, laid out as files, mounts and environment variables.

User `user` with the usual folders, `python` with pyautogui, Chromium under the name of Google Chrome, `sudo`, `apt`,
a D-Bus session at its usual place, dconf, accessibility, sound into nowhere.

Invariants:
    - Nothing is started here. Each service starts when it is first asked for (accessibility and dconf by D-Bus,
      pulseaudio by its own clients), so that booting costs no more than the bare profile does.
    - Programs of `/usr/local` of the host are not seen inside; its place is taken by what is laid out here.
    - Without a sandbox these are missing: `/home/user` in the commands of tasks, ports of its own, the bus at
      /run/user/1000/bus, and a browser whose processes are all named chrome and whose windows are Google Chrome's.
"""

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.project_pages import step
from dart_gym.desktops.applications.browser import browser_program
from dart_gym.desktops.confinement.bubblewrap import everybody_passes
from dart_gym.desktops.sandbox.chrome_names import LANGUAGE, with_chromes_name
from dart_gym.desktops.sandbox.osworld_settings import (
    Place,
    dconf_defaults,
    default_applications,
    gtk_settings,
    home_files,
    media_types,
    of,
)

PASSWORD = "password"
PYTHON_VARIABLE = "DART_GYM_DESKTOP_PYTHON"
PYTHON_PACKAGES = (
    "pyautogui==0.9.54", "pymsgbox==2.0.1", "pytweening==1.2.0", "pyscreeze==1.0.1", "pygetwindow==0.0.9",
    "pyrect==0.2.0", "mouseinfo==0.1.3", "pyperclip==1.11.0",
)  # fmt: skip
"""What Debian lacks for programs on the desktop, as in requirements/desktop.in."""
_SHIMS = Path(__file__).with_name("shims")
_PANELS = Path(__file__).with_name("panels")
_LINKS = {"google-chrome-stable": "google-chrome", "apt-get": "apt"}
_LOCAL = "/usr/local"
_FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
_USER_DIRS = "".join(
    f'XDG_{ {"Public": "PUBLICSHARE", "Downloads": "DOWNLOAD"}.get(name, name.upper()) }_DIR="$HOME/{name}"\n'
    for name in _FOLDERS
)

_HOME_FILES = {".config/user-dirs.dirs": _USER_DIRS, ".config/user-dirs.locale": "en_US"}

# The port is that of OSWorld's server README (Chrome Configuration): however Chrome is started, DevTools can be had.
_CHROME_ENTRY = """[Desktop Entry]
Version=1.0
Type=Application
Name=Google Chrome
Exec=google-chrome --remote-debugging-port=1337 %U
Icon=chromium
StartupWMClass=google-chrome
Categories=Network;WebBrowser;
MimeType=text/html;application/xhtml+xml;x-scheme-handler/http;x-scheme-handler/https;
"""
# Debian's Chromium, in no menu: it would be another browser with a profile of its own.
_HIDDEN_ENTRY = "[Desktop Entry]\nType=Application\nName=Chromium\nHidden=true\n"
# Debian's own is started by D-Bus, which would not find the shim.
_VIDEOS_ENTRY = """[Desktop Entry]
Type=Application
Name=Videos
Exec=totem %F
Icon=org.gnome.Totem
Categories=GNOME;GTK;AudioVideo;Player;Video;
"""
_PULSE_CLIENT = "autospawn = yes\ndaemon-binary = /usr/bin/pulseaudio\nextra-arguments = {arguments}\n"
_PULSE_SCRIPT = """load-module module-null-sink sink_name=auto_null sink_properties=device.description=Speakers
load-module module-native-protocol-unix
set-default-sink auto_null
set-sink-volume auto_null 0x8000
"""
# Debian's Thunderbird is of another class than Ubuntu's, by which OSWorld's tasks close its windows so that it writes
# its settings. Its start script sources this file in the place of its helper, before it reads its arguments.
_THUNDERBIRD_HELPER = """. /usr/lib/thunderbird/thunderbird-wrapper-helper.sh
set -- --class=thunderbird "$@"
"""
# Started by D-Bus on request; refused here, because they index the disk, or look for devices that are not there.
_REFUSED_SERVICES = (
    "org.freedesktop.Tracker3.Miner.Extract",
    "org.freedesktop.Tracker3.Miner.Files",
    "org.freedesktop.Tracker3.Miner.Files.Control",
    "org.freedesktop.Tracker3.Writeback",
    "org.freedesktop.portal.Tracker",
    "org.gnome.Nautilus.Tracker3.Miner.Extract",
    "org.gnome.Nautilus.Tracker3.Miner.Files",
    "org.gtk.vfs.UDisks2VolumeMonitor",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a profile adds to the bare sandbox.

    Attributes:
        terminal_key: whether ctrl+alt+t opens a terminal.
        panels: where the settings of bar and dock are, seen from inside.
    """

    mounts: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    terminal_key: bool = False
    panels: tuple[str, ...] = ()


def desktop_python() -> Path:
    """The directory of the Python packages for programs on the desktop (pyautogui)."""
    named = os.environ.get(PYTHON_VARIABLE)
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(named) if named else Path(base) / "dart-gym" / "desktop-python"


def python_step() -> str:
    """Return what installs those packages."""
    return step("make apps", f"pip install --no-deps --target {desktop_python()} {' '.join(PYTHON_PACKAGES)}")


def osworld_machine(directory: Path, home: Path, *, isolated: bool, seen: Path) -> Machine:
    """Lay out the files of the profile.

    Raises:
        MissingDependencyError: if something is missing that all tasks of OSWorld need.
    """
    packages = desktop_python()
    if not (packages / "pyautogui").is_dir():
        raise MissingDependencyError(
            f"the profile osworld needs pyautogui for the desktop in {packages}; next step: {python_step()} "
            f"(or set {PYTHON_VARIABLE} to where it is)"
        )
    _make_home(home)
    place = _LOCAL if isolated else str(seen)
    _make_programs(directory / "bin")
    _make_settings(directory / "etc", f"{place}/etc")
    _write(directory / "share/applications/google-chrome.desktop", _CHROME_ENTRY)
    _write(directory / "share/applications/chromium.desktop", _HIDDEN_ENTRY)
    _write(directory / "share/applications/org.gnome.Totem.desktop", _VIDEOS_ENTRY)
    registered = media_types("google-chrome.desktop", "org.gnome.Totem.desktop")
    _write(directory / "share/applications/mimeinfo.cache", registered)
    _write(directory / "share/applications/mimeapps.list", default_applications())
    for name in _REFUSED_SERVICES:
        _write(directory / f"share/dbus-1/services/{name}.service", f"[D-BUS Service]\nName={name}\nExec=/bin/false\n")
    panels = tuple(f"{place}/etc/{panel.name}" for panel in sorted(_PANELS.iterdir()))
    chrome = _browser_program()
    env = _environment(place, isolated)
    if not isolated:
        (directory / "lib/chrome").mkdir(parents=True)
        if chrome is not None:
            (directory / "lib/chrome/chrome").symlink_to(chrome)
        env["PATH"] = f"{place}/bin:/usr/local/bin:/usr/bin:/bin:/usr/games"
        if os.geteuid() == 0 and not everybody_passes(packages):  # the programs run as another user
            shutil.copytree(packages, directory / "lib/python")
            packages = seen / "lib/python"
        env["PYTHONPATH"] = str(packages)
        return Machine(env=env, terminal_key=True, panels=panels)
    return Machine(_mounts(directory, packages, chrome), env, terminal_key=True, panels=panels)


def _make_home(home: Path) -> None:
    for name in _FOLDERS:
        (home / name).mkdir(parents=True)
    for name, text in {**_HOME_FILES, **home_files()}.items():
        _write(home / name, text)


def _make_programs(directory: Path) -> None:
    directory.mkdir(parents=True)
    for shim in _SHIMS.iterdir():
        if shim.name.startswith("gnome-") and not Path("/usr/bin", shim.name).exists():
            continue  # it starts that one; Pillow takes another way to a screenshot then
        shutil.copyfile(shim, directory / shim.name)
        (directory / shim.name).chmod(0o755)  # an installed package need not have kept the bit
    for name, target in _LINKS.items():
        (directory / name).symlink_to(target)
    for name in ("python", "python3"):
        (directory / name).symlink_to("/usr/bin/python3")


def _make_settings(directory: Path, place: str) -> None:
    _write(directory / "pulse.pa", _PULSE_SCRIPT)
    arguments = f"-n -F {place}/pulse.pa --exit-idle-time=-1 --use-pid-file=yes --log-target=stderr --disable-shm=yes"
    _write(directory / "pulse-client.conf", _PULSE_CLIENT.format(arguments=arguments))
    for panel in _PANELS.iterdir():
        _write(directory / panel.name, panel.read_text(encoding="utf-8").replace(_LOCAL, place.removesuffix("/etc")))
    _write(directory / "thunderbird-helper.sh", _THUNDERBIRD_HELPER)
    _write(directory / "dconf-profile", f"user-db:user\nfile-db:{place}/dconf.db\n")
    (directory / "dconf.db").write_bytes(compiled_defaults())
    for version in ("3.0", "4.0"):
        _write(directory / f"xdg/gtk-{version}/settings.ini", gtk_settings())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@functools.cache
def compiled_defaults() -> bytes:
    """The machine's dconf defaults in dconf's own format."""
    dconf = shutil.which("dconf")
    if dconf is None:
        raise MissingDependencyError("the profile osworld needs dconf; next step: apt-get install dconf-cli")
    with tempfile.TemporaryDirectory() as directory:
        keys, database = Path(directory, "keys"), Path(directory, "database")
        _write(keys / "defaults", dconf_defaults())
        subprocess.run([dconf, "compile", str(database), str(keys)], check=True, capture_output=True, timeout=30)
        return database.read_bytes()


def chrome_texts() -> bytes | None:
    """The real browser's texts with Chrome's names, made once for each build of it; None without such texts."""
    chrome = _browser_program()
    path = None if chrome is None else chrome.parent / "locales" / LANGUAGE
    return None if path is None or not path.exists() else _renamed(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _renamed(path: Path, changed: int) -> bytes:
    return with_chromes_name(path.read_bytes())


def _browser_program() -> Path | None:
    """The real browser, which has its resources beside it; None if it is not installed."""
    if (debian := Path("/usr/lib/chromium/chromium")).exists():
        return debian
    try:
        return Path(browser_program()).resolve()
    except MissingDependencyError:
        return None  # `google-chrome` will say that it is missing, other programs do without


def _mounts(directory: Path, packages: Path, chrome: Path | None) -> list[str]:
    """Arguments of bubblewrap that put the laid out files in the place of `/usr/local`."""
    version = os.path.basename(os.path.realpath("/usr/bin/python3"))
    args = ["--tmpfs", _LOCAL]
    for name in ("bin", "etc", "share"):
        args += ["--ro-bind", str(directory / name), f"{_LOCAL}/{name}"]
    args += ["--ro-bind", str(packages), f"{_LOCAL}/lib/{version}/dist-packages"]
    args += [*([] if chrome is None else _chrome_mounts(directory, chrome)), "--remount-ro", _LOCAL]
    for name in ("/var/lib/dpkg", "/var/lib/apt"):  # what is installed may be asked
        args += ["--ro-bind-try", name, name]
    return args


def _chrome_mounts(directory: Path, chrome: Path) -> list[str]:
    """A program of the name that `pkill chrome` looks for, beside what it needs, and with texts that name it so."""
    place, texts = f"{_LOCAL}/lib/chrome", chrome.parent / "locales" / LANGUAGE
    args = ["--ro-bind", str(chrome), f"{place}/chrome"]
    linked = {*chrome.parent.iterdir()} - {chrome}
    if (renamed := chrome_texts()) is not None:
        (directory / LANGUAGE).write_bytes(renamed)
        args += ["--ro-bind", str(directory / LANGUAGE), f"{place}/locales/{LANGUAGE}"]
        linked = (linked | {*texts.parent.iterdir()}) - {texts, texts.parent}
    for path in sorted(linked):
        args += ["--symlink", str(path), f"{place}/{path.relative_to(chrome.parent)}"]
    return args


def _environment(place: str, isolated: bool) -> dict[str, str]:
    locale = _locale()
    return {
        "LANG": locale,
        "LANGUAGE": "en_US:en",
        "TZ": "UTC",
        "XDG_CURRENT_DESKTOP": "GNOME",
        "XDG_SESSION_DESKTOP": "gnome",
        "DESKTOP_SESSION": "gnome",
        **dict(of(Place.ENVIRONMENT)),
        "XDG_CONFIG_DIRS": f"{place}/etc/xdg:/etc/xdg",
        "XDG_DATA_DIRS": "/usr/local/share:/usr/share" if isolated else f"{place}/share:/usr/local/share:/usr/share",
        "NO_AT_BRIDGE": "0",
        "QT_ACCESSIBILITY": "1",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "DCONF_PROFILE": f"{place}/etc/dconf-profile",
        "PULSE_CLIENTCONFIG": f"{place}/etc/pulse-client.conf",
        "PULSE_SCRIPT": f"{place}/etc/pulse.pa",  # for `pulseaudio --start`, which does not read the client's
        "TB_HELPER": f"{place}/etc/thunderbird-helper.sh",
        "DART_GYM_CLIENT_PASSWORD": PASSWORD,
    }


def _locale() -> str:
    """American English where the machine has it; C is that too for all that OSWorld's tasks show."""
    folder = Path("/usr/lib/locale")
    archive = folder / "locale-archive"
    if (folder / "en_US.utf8").is_dir() or (archive.exists() and b"en_US.utf8" in archive.read_bytes()):
        return "en_US.UTF-8"
    return "C.UTF-8"
