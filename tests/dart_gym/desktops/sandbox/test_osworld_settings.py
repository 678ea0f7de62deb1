"""OSWorld's settings: each is in a file that its program reads, and has its effect on a real desktop."""

from __future__ import annotations

import configparser
import json
import shlex
from importlib import resources
from xml.etree import ElementTree

import pytest

from dart_gym.core.actions import Click, Press, Type
from dart_gym.desktops.sandbox import osworld_settings
from dart_gym.desktops.sandbox.osworld_settings import SETTINGS, Place, of
from dart_gym.tasks.screen.idleness import wait_until_idle
from dart_gym.tasks.setup.setup_runner import run_steps

OOR = "{http://openoffice.org/2001/registry}"
SAVE = "import pyautogui; import time; pyautogui.hotkey('ctrl', 's'); time.sleep(0.5);"  # as OSWorld's tasks do it


def registry(text: str) -> dict[str, str]:
    """Path and property -> value of a file of LibreOffice's settings."""
    found = {}
    for item in ElementTree.fromstring(text.encode()):
        for prop in item:
            value = prop.find("value")
            assert value is not None
            found[f"{item.attrib[OOR + 'path']}:{prop.attrib[OOR + 'name']}"] = value.text or ""
    return found


def test_each_setting_has_an_effect_and_a_source():
    for setting in SETTINGS:
        assert setting.effect and setting.source and setting.name, setting
    names = [(setting.place, name) for setting in SETTINGS for name in _names(setting.place, setting.name)]
    assert len(names) == len(set(names))  # none contradicts another
    assert {setting.place for setting in SETTINGS} == set(Place)  # each place is used


def _names(place: Place, name: str) -> list[str]:
    return name.split() if place is Place.DEFAULT_APPLICATION else [name]


def test_libreoffice_is_told_all_of_its_settings():
    found = registry(osworld_settings.libreoffice_registry())
    assert found == {f"/org.openoffice.{name}": value for name, value in of(Place.LIBREOFFICE)}
    formats = [value for name, value in found.items() if name.endswith("ooSetupFactoryDefaultFilter")]
    assert formats == ["MS Word 2007 XML", "Calc MS Excel 2007 XML", "Impress MS PowerPoint 2007 XML"]


def test_each_setting_is_in_a_file_of_its_program():
    texts = {
        Place.DCONF: osworld_settings.dconf_defaults(),
        Place.VLC: osworld_settings.vlc_configuration(),
        Place.GTK: osworld_settings.gtk_settings(),
        Place.DEFAULT_APPLICATION: osworld_settings.default_applications(),
    }
    for place, text in texts.items():
        read = configparser.ConfigParser(delimiters="=", interpolation=None)
        read.optionxform = str  # type: ignore[assignment,method-assign]
        read.read_string(text)
        values = {f"{section}/{key}": value for section in read for key, value in read[section].items()}
        for names, value in of(place):
            for name in _names(place, names):
                key = {Place.GTK: f"Settings/{name}", Place.DEFAULT_APPLICATION: f"Default Applications/{name}"}
                assert values[key.get(place, name)] == value
    assert 'pref("mail.rights.version", 1);' in osworld_settings.thunderbird_preferences()


def test_suites_that_bring_a_profile_of_libreoffice_bring_these_settings_too():
    """A user's profile of its own replaces the machine's only where no sandbox shows the machine's `/etc`."""
    fixed = {f"/org.openoffice.{setting.name}" for setting in SETTINGS if setting.fixed}  # no profile says otherwise
    read = registry(osworld_settings.libreoffice_registry())
    wanted = {name: value for name, value in read.items() if name not in fixed}
    brought = 0
    for suite in (path for path in resources.files("dart_gym.tasks.suites").iterdir() if path.is_dir()):
        for path in suite.iterdir():
            if path.name.endswith(".json"):
                for text in _profiles(json.loads(path.read_text())):
                    brought += 1
                    assert wanted.items() <= registry(text).items(), path
    assert brought


def _profiles(value) -> list[str]:
    """The texts that steps anywhere in a JSON value write into LibreOffice's profile."""
    if isinstance(value, list):
        return [text for item in value for text in _profiles(item)]
    if not isinstance(value, dict):
        return []
    if str(value.get("path", "")).endswith("registrymodifications.xcu"):
        return [value["text"]]
    return [text for item in value.values() for text in _profiles(item)]


# --- on a real desktop


async def shell(desktop, script: str, timeout: float = 60.0) -> str:
    """Standard output of a script that must succeed."""
    result = await desktop.execute(["bash", "-c", script], timeout=timeout)
    assert result.returncode == 0, f"{script}: {result.stdout!r} {result.stderr!r}"
    return result.stdout.decode().strip()


async def titles(desktop) -> list[str]:
    listed = await desktop.execute(["wmctrl", "-l"])  # fails where a window, such as a splash, is closed meanwhile
    rows = listed.stdout.decode().splitlines() if listed.returncode == 0 else []
    return [row.split(None, 3)[3] for row in rows if len(row.split(None, 3)) == 4]


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(120)
async def test_the_machines_settings_hold(start_desktop, until):
    desktop = await start_desktop(profile="osworld", width=1920, height=1080)
    for name, value in of(Place.DCONF):
        schema, _, key = name.replace("/", ".").rpartition(".")
        if schema in (await shell(desktop, "gsettings list-schemas")).split():
            assert await shell(desktop, f"gsettings get {schema} {key}") == value, name
    for name, value in of(Place.ENVIRONMENT):
        assert await shell(desktop, f"echo ${name}") == value
    for name, value in of(Place.HOME):
        assert await desktop.read_file(f"/home/user/{name}") == value.encode()
    kinds = {kind: entry for types, entry in of(Place.DEFAULT_APPLICATION) for kind in types.split()}
    asked = " ".join(f"$(xdg-mime query default {shlex.quote(kind)})" for kind in kinds)
    assert (await shell(desktop, f"echo {asked}")).split() == list(kinds.values())
    assert "chromium.desktop" not in await shell(desktop, "gio mime text/html")  # there is one browser
    for font, stand_in in {
        "Calibri": "Carlito",
        "Cambria": "Caladea",
        "Arial": "Liberation Sans",
        "Times New Roman": "Liberation Serif",
        "Courier New": "Liberation Mono",
        "sans-serif": "DejaVu Sans",
    }.items():
        assert await shell(desktop, f"fc-match -f %{{family}} {shlex.quote(font)}") == stand_in
    await shell(desktop, "convert -size 9x9 xc:red a.png && identify a.png && test -d /usr/share/icons/$XCURSOR_THEME")
    await desktop.launch(["vlc", "--no-audio"])
    await desktop.launch(["gio", "launch", "/usr/local/share/applications/google-chrome.desktop"])
    ask = (
        "curl -sf -u :password http://localhost:8080/requests/status.xml && curl -sf http://localhost:1337/json/version"
    )

    async def answered():
        result = await desktop.execute(["sh", "-c", ask])
        return result.stdout if result.returncode == 0 else b""

    answer = await until(answered, timeout=60)
    assert b"<volume>" in answer and b"Chrome/" in answer
    assert all("VLC" in title or "Chrome" in title for title in await titles(desktop))  # no question


@pytest.mark.desktop
@pytest.mark.timeout(120)
async def test_what_is_opened_is_shown_by_the_program_that_is_set_for_it(start_desktop, until):
    """The default programs must not only be named, but work: GNOME's player would find no OpenGL."""
    desktop = await start_desktop(profile="osworld", width=1280, height=800)
    make = (
        "mkdir -p 'my films' && ffmpeg -v error -f lavfi -i testsrc=d=30:s=320x240 -pix_fmt yuv420p 'my films/a b.mp4'"
    )
    await shell(desktop, f"{make} && convert -size 99x99 xc:red 'a picture.xpm' && echo text > Makefile")
    for path, window in {
        "my films/a b.mp4": "a b.mp4",
        "a picture.xpm": "a picture.xpm",
        "Makefile": "Makefile",
    }.items():
        await desktop.launch(["xdg-open", path])

        async def shown(window=window):
            return any(window in title for title in await titles(desktop))

        await until(shown, timeout=30)
    assert len(await titles(desktop)) == 3, await titles(desktop)  # and none that tells of an error
    assert "org.gnome.Totem.desktop" in await shell(desktop, "gio mime video/mp4 | sed -n '/Registered/,$p'")


@pytest.mark.desktop
@pytest.mark.timeout(180)
async def test_libreoffice_without_a_display_leaves_no_window_size_to_the_next(start_desktop, until):
    """Else Writer began with 800x600, and with its title above the screen."""
    desktop = await start_desktop(profile="osworld", width=1280, height=800)
    await shell(desktop, "echo hello > a.txt && soffice --headless --convert-to docx a.txt && test -s a.docx", 120)
    await desktop.launch(["soffice", "--writer", "a.docx"])

    async def shown():
        return any(title.startswith("a.docx") for title in await titles(desktop))

    await until(shown, timeout=90)
    window = (await shell(desktop, "wmctrl -lG | grep a.docx")).split()
    x, y, width, height = map(int, window[2:6])
    assert x >= 0 and y >= 18 and x + width <= 1280 and y + height <= 800, window  # 18: the title above it
    assert width > 1000 and height > 600, window


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(120)
async def test_thunderbird_has_the_whole_screen_and_no_bars(start_desktop, until):
    desktop = await start_desktop(profile="osworld", width=1920, height=1080)
    await desktop.launch(["thunderbird"])
    wide = "wmctrl -lGx | grep -E ' 1920 +1080 +Mail.thunderbird'"

    async def shown():
        return (await desktop.execute(["sh", "-c", wide])).stdout

    await until(shown, timeout=60)
    await wait_until_idle(desktop)
    tree = await desktop.accessibility_tree()
    assert "Know your rights" not in tree.xml and "Mozilla Thunderbird" in tree.xml
    assert len(await titles(desktop)) == 1
    assert "Mail.thunderbird " in await shell(desktop, "wmctrl -lx")  # as OSWorld's tasks name it to close it


@pytest.mark.desktop
@pytest.mark.timeout(120)
@pytest.mark.parametrize("profile", ["osworld", "bare"])
async def test_a_menu_of_gtk_4_has_nothing_black_around_it(start_desktop, until, profile):
    desktop = await start_desktop(profile=profile, width=1280, height=800)
    await shell(desktop, "mkdir -p Desktop Documents")
    await desktop.launch(["nautilus", "/home/user"])

    async def shown():
        return (await desktop.execute(["wmctrl", "-l"])).stdout

    await until(shown)
    await wait_until_idle(desktop, timeout=20)
    before = await desktop.screenshot()
    await desktop.perform(Click(640, 560, button="right"))

    async def changed():
        return (before != await desktop.screenshot()).any(axis=2).sum() > 20_000

    await until(changed)
    menu = await desktop.screenshot()
    assert (menu == 0).all(axis=2).sum() < 1000  # the pointer, and strokes of icons


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(120)
async def test_gimp_draws_its_theme(start_desktop, until):
    desktop = await start_desktop(profile="osworld", width=1920, height=1080)
    step = {"type": "launch", "parameters": {"command": "exec gimp > ~/gimp.log 2>&1", "shell": True}}
    await run_steps(desktop, [step])

    async def shown():
        return "GNU Image Manipulation Program" in await titles(desktop)

    await until(shown, timeout=60)
    await wait_until_idle(desktop, timeout=20)
    assert "theme engine" not in await shell(desktop, "cat ~/gimp.log")


SLIDE = """<?xml version="1.0"?><office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0" office:version="1.2"
 office:mimetype="application/vnd.oasis.opendocument.presentation"><office:body><office:presentation>
 <draw:page draw:name="one"/></office:presentation></office:body></office:document>"""
SOURCES = {"text": ("a.rtf", r"{\rtf1 Hello}"), "sheet": ("a.csv", "1,2\n"), "slides": ("a.fodp", SLIDE)}
FORMATS = {"text": "docx odt rtf doc fodt", "sheet": "xlsx csv ods xls dif", "slides": "pptx odp ppt"}
QUICK = ("docx", "xlsx", "csv", "pptx")  # the others are slow
EDITS = {"text": [Type("Written here. ")], "sheet": [Type("7316\n")], "slides": [Press(("ctrl", "m"))]}
OWN_PROFILE = '<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry"></oor:items>'


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "own_profile", [pytest.param(False, id="machine"), pytest.param(True, id="suite", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("formats", [pytest.param("quick"), pytest.param("others", marks=pytest.mark.slow)])
async def test_ctrl_s_of_an_evaluation_saves_every_format_without_a_question(
    start_desktop, until, own_profile, formats
):
    """A task that is done in the window and saved by OSWorld's postconfig; with a profile that a suite brings, too."""
    desktop = await start_desktop(profile="osworld", width=1920, height=1080)
    if own_profile:
        path = "/home/user/.config/libreoffice/4/user/registrymodifications.xcu"
        await desktop.write_file(path, OWN_PROFILE.encode())
    for kind, (source, text) in SOURCES.items():
        await desktop.write_file(f"/home/user/{source}", text.encode())
        for ending in FORMATS[kind].split():
            if (ending in QUICK) == (formats == "quick") and not (own_profile and ending in ("pptx", "csv")):
                if not source.endswith(f".{ending}"):
                    await shell(
                        desktop, f"soffice --headless --convert-to {ending} --outdir out {source} > /dev/null 2>&1"
                    )
                else:
                    await shell(desktop, f"mkdir -p out && cp {source} out/")
                await _edited_and_saved(desktop, until, f"/home/user/out/a.{ending}", EDITS[kind])


async def _ok_of(desktop, title: str) -> Click:
    """Return a click on the button OK in the lower right corner of a dialog, in which Enter goes to a list."""
    found = await shell(desktop, f"xdotool search --onlyvisible --name '{title}' getwindowgeometry --shell")
    place = {name: int(value) for name, value in (line.split("=") for line in found.splitlines())}
    return Click(place["X"] + place["WIDTH"] - 51, place["Y"] + place["HEIGHT"] - 29)


async def _edited_and_saved(desktop, until, path: str, edits) -> None:
    before = await shell(desktop, f"sha256sum {path}")
    await desktop.launch(["soffice", "--nologo", path])
    name = path.rpartition("/")[2]

    async def opened():
        return any(title.startswith(name) for title in await titles(desktop))

    async def asked():
        return [title for title in await titles(desktop) if not title.startswith(name)]

    if name.endswith(("csv", "dif")):  # LibreOffice asks how the text is to be read, as it does in OSWorld
        await until(lambda: _any(asked), timeout=60)
        await wait_until_idle(desktop, timeout=20)
        await desktop.perform(Press(("enter",)) if name.endswith("csv") else await _ok_of(desktop, "Dif Import"))
    await until(opened, timeout=60)
    await wait_until_idle(desktop, timeout=20)
    for action in edits:
        await desktop.perform(action)
    await wait_until_idle(desktop, timeout=20)
    assert await shell(desktop, f"sha256sum {path}") == before  # not saved yet
    await run_steps(desktop, [{"type": "execute", "parameters": {"command": ["python", "-c", SAVE]}}])
    await wait_until_idle(desktop, timeout=20)
    assert await shell(desktop, f"sha256sum {path}") != before, (name, await titles(desktop))
    assert await asked() == []
    kept = {
        "docx": "PK",
        "xlsx": "PK",
        "pptx": "PK",
        "odt": "PK",
        "ods": "PK",
        "odp": "PK",
        "rtf": "{\\rtf",
        "csv": "7316",
    }
    start = (await desktop.read_file(path))[:5].decode(errors="replace")
    assert start.startswith(kept.get(name.partition(".")[2], "")), start  # and the format is the same
    await shell(desktop, "pkill -x soffice.bin; while pgrep -x -r R,S,D soffice.bin; do sleep 0.1; done")


async def _any(found) -> bool:
    return bool(await found())
