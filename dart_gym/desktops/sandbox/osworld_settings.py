"""The settings of OSWorld's machine in one table, each with its effect and its source, and the files made of them.

`SETTINGS` is applied whole: by `osworld_profile` to desktops of that profile, and `SYSTEM_FILES` (LibreOffice's and
Thunderbird's) to every desktop in a sandbox, so that a task or suite that brings a profile of its own gets them too
where that profile does not say otherwise.

Invariants:
    - Pure: values and text. Nothing is read or written here.
    - What cannot be had on this machine is listed in docs/guides/osworld.md with what it means for scores.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from xml.sax.saxutils import quoteattr

README = "server README"
"""`desktop_env/server/README.md` of OSWorld, which says how its machine is set up."""
FIRST_START = "its machine: every application has been started before"
UBUNTU = "its machine: Ubuntu 22.04"
SCREEN = "this machine: there is no compositor and no settings daemon"


class Place(StrEnum):
    """What a setting is written into; the name of a setting is in that program's own notation."""

    LIBREOFFICE = "LibreOffice's registry"
    DCONF = "dconf's defaults"
    VLC = "vlcrc"
    THUNDERBIRD = "Thunderbird's preferences"
    GTK = "GTK's settings"
    ENVIRONMENT = "environment"
    HOME = "home directory"
    DEFAULT_APPLICATION = "default applications"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: "path:property", "section/key", a variable, a file below the home directory, or media types.
        value: what it is set to: as the program writes it, a file's text, or a desktop entry.
        effect: the effect that a user sees.
        source: who prescribes it.
        fixed: whether the program cannot change it.
    """

    place: Place
    name: str
    value: str
    effect: str
    source: str
    fixed: bool = False


def _libreoffice(name: str, value: str, effect: str, source: str, *, fixed: bool = False) -> Setting:
    return Setting(Place.LIBREOFFICE, name, value, effect, source, fixed)


def _default_format(document: str, value: str, effect: str) -> Setting:
    path = f"Setup/Office/Factories/org.openoffice.Setup:Factory['com.sun.star.{document}']"
    source = f"{README}, Software Configuration 1"
    return _libreoffice(f"{path}:ooSetupFactoryDefaultFilter", value, effect, source)


def _usual_window(document: str) -> Setting:
    path = f"Setup/Office/Factories/org.openoffice.Setup:Factory['com.sun.star.{document}']"
    effect = "windows begin nearly as large as the screen: --headless would leave 800x600 to the next one"
    return _libreoffice(f"{path}:ooSetupFactoryWindowAttributes", "", effect, SCREEN, fixed=True)


def _opened_by(entry: str, kinds: str, *types: str) -> Setting:
    return Setting(Place.DEFAULT_APPLICATION, " ".join(types), f"{entry}.desktop", f"{entry} opens {kinds}", UBUNTU)


def _all(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}/{name}" for name in names.split())


_WORD = "text.TextDocument"
_SHEET = "sheet.SpreadsheetDocument"
_SLIDES = "presentation.PresentationDocument"
_DRAWING = "drawing.DrawingDocument"
_NEVER = "2147483647"  # seconds since 1970: the last time that a bar was shown
_POPOVERS = """/* Without a compositor what is transparent around a menu is black: so nothing is. */
popover, popover.background { background: @theme_bg_color; }
popover > contents, popover.menu > contents {
  margin: 0; border: 1px solid alpha(currentColor, 0.3); border-radius: 0; box-shadow: none;
  background-clip: border-box;
}
popover > arrow { min-width: 0; min-height: 0; background: none; border: none; }
tooltip, tooltip.background { margin: 0; border-radius: 0; box-shadow: none; background-clip: border-box; }
"""
_OFFICE_TYPES = "vnd.openxmlformats-officedocument"

_LIBREOFFICE = (
    _default_format(_WORD, "MS Word 2007 XML", "Writer saves as .docx, keeps one without asking"),
    _default_format(_SHEET, "Calc MS Excel 2007 XML", "Calc saves as .xlsx, keeps one without asking"),
    _default_format(_SLIDES, "Impress MS PowerPoint 2007 XML", "Impress saves as .pptx, keeps one without asking"),
    _libreoffice(
        "Office.Common/Save/Document:WarnAlienFormat",
        "false",
        "no question about other formats (.csv, .rtf, .doc, .html) either, which would swallow an evaluator's key",
        "postconfig of OSWorld's tasks: ctrl+s saves",
    ),
    _libreoffice("Office.Recovery/AutoSave:Enabled", "false", "nothing is saved unasked", f"{README}, Overview 6"),
    _libreoffice("Office.Recovery/RecoveryInfo:Enabled", "false", "no recovery after a crash", f"{README}, Overview 6"),
    _libreoffice("Office.Common/Misc:FirstRun", "false", "no welcome", FIRST_START),
    _libreoffice("Office.Common/Misc:ShowTipOfTheDay", "false", "no tip of the day", FIRST_START),
    _libreoffice("Office.Common/Misc:CrashReport", "false", "no question about reports", FIRST_START),
    _libreoffice("Office.Impress/Misc/NewDoc:AutoPilot", "false", "Impress begins without its wizard", FIRST_START),
    _libreoffice("Office.Impress/Misc/Start:EnableSdremote", "false", "no remote control is looked for", FIRST_START),
    _libreoffice("Setup/Product:ooSetupLastVersion", "99.9", "no bar about a new version", FIRST_START),
    _libreoffice("Setup/Product:LastTimeGetInvolvedShown", _NEVER, "no bar about taking part", FIRST_START),
    _libreoffice("Setup/Product:LastTimeDonateShown", _NEVER, "no bar about donations", FIRST_START),
    *map(_usual_window, (_WORD, _SHEET, _SLIDES, _DRAWING)),
    _libreoffice("Office.Common/Misc:SymbolStyle", "colibre", "icons for light windows", SCREEN),
)  # fmt: skip

_GNOME = (
    Setting(Place.DCONF, "org/gnome/desktop/interface/toolkit-accessibility", "true",
            "programs tell the accessibility tree", f"{README}, About the Converted Accessibility Tree"),
    Setting(Place.DCONF, "org/gnome/desktop/session/idle-delay", "uint32 0",
            "the screen never goes blank", f"{README}, Automatic Suspend"),
    Setting(Place.DCONF, "org/gnome/settings-daemon/plugins/power/sleep-inactive-ac-type", "'nothing'",
            "the machine never sleeps", f"{README}, Automatic Suspend"),
    Setting(Place.DCONF, "org/gnome/desktop/screensaver/lock-enabled", "false", "the screen is never locked",
            f"{README}, Automatic Suspend"),
    Setting(Place.DCONF, "org/gnome/desktop/interface/cursor-theme", "'Yaru'", "Ubuntu's pointer", UBUNTU),
    Setting(Place.DCONF, "org/gnome/control-center/last-panel", "'notifications'",
            "Settings begins where it needs no network", SCREEN),
    Setting(Place.GTK, "gtk-cursor-theme-name", "Yaru", "Ubuntu's pointer in GTK's programs", UBUNTU),
    Setting(Place.GTK, "gtk-cursor-theme-size", "24", "the pointer's size", UBUNTU),
    Setting(Place.ENVIRONMENT, "XCURSOR_THEME", "Yaru", "Ubuntu's pointer in all other programs", UBUNTU),
    Setting(Place.ENVIRONMENT, "XCURSOR_SIZE", "24", "the pointer's size", UBUNTU),
)  # fmt: skip

_APPLICATIONS = (
    Setting(Place.VLC, "core/extraintf", "http", "VLC's web interface", f"{README}, VLC Configuration"),
    Setting(Place.VLC, "lua/http-password", "password", "its password", f"{README}, VLC Configuration"),
    Setting(Place.VLC, "qt/qt-privacy-ask", "0", "no question about privacy", FIRST_START),
    Setting(Place.VLC, "core/metadata-network-access", "0", "nothing is looked up in the network", FIRST_START),
    Setting(Place.HOME, ".local/share/keyrings/login.keyring", "", "no password for Chrome's keyring",
            f"{README}, Software Configuration 2"),
    Setting(Place.HOME, ".config/google-chrome/Default/Preferences", "{}", "tasks edit it before the first start",
            FIRST_START),
    Setting(Place.THUNDERBIRD, "mail.rights.version", "1", "no bar about rights", FIRST_START),
    Setting(Place.THUNDERBIRD, "mail.shell.checkDefaultClient", "false", "no question about defaults", FIRST_START),
    Setting(Place.THUNDERBIRD, "datareporting.policy.dataSubmissionEnabled", "false", "no notice about data",
            FIRST_START),
    Setting(Place.THUNDERBIRD, "datareporting.policy.bypassNotification", "true", "no notice about data", FIRST_START),
    Setting(Place.THUNDERBIRD, "mailnews.start_page_override.mstone", '"ignore"', "no page about a new version",
            FIRST_START),
    Setting(Place.THUNDERBIRD, "app.donation.eoy.version.viewed", "9999", "no page about donations", FIRST_START),
)  # fmt: skip

_VIDEOS = (
    "3gp 3gpp 3gpp2 avi divx dv fli flv mp2t mp4 mp4v-es mpeg msvideo ogg quicktime vnd.divx vnd.mpegurl "
    "vnd.rn-realvideo webm x-anim x-avi x-flc x-fli x-flv x-m4v x-matroska x-mpeg x-mpeg2 x-ms-asf x-ms-wm x-ms-wmv "
    "x-msvideo x-nsv x-ogm+ogg x-theora x-theora+ogg"
)
_DEFAULTS = (
    _opened_by("google-chrome", "web pages", "text/html", "application/xhtml+xml", "application/x-mimearchive",
               *_all("x-scheme-handler", "http https")),
    _opened_by("org.gnome.Evince", "documents", *_all("application", "pdf postscript x-dvi"), "image/vnd.djvu"),
    _opened_by("org.gnome.Nautilus", "folders", "inode/directory"),
    _opened_by("org.gnome.gedit", "texts",
               *_all("text", "plain markdown xml css x-python x-python3 x-csrc x-chdr x-c++src x-c++hdr x-java x-log "
                             "x-tex x-makefile x-pascal x-tcl x-moc x-bibtex x-script.python javascript "
                             "tab-separated-values"),
               *_all("application", "x-shellscript json xml javascript x-yaml toml sql x-perl")),
    _opened_by("org.gnome.eog", "pictures",
               *_all("image", "png jpeg gif bmp svg+xml tiff webp x-portable-pixmap x-portable-anymap "
                              "x-portable-bitmap x-portable-graymap x-xbitmap x-xpixmap x-pcx x-icon x-tga")),
    _opened_by("gimp", "GIMP's pictures", "image/x-xcf", "image/x-psd", "image/vnd.adobe.photoshop"),
    # GNOME's player, and not VLC: one of OSWorld's tasks is to make VLC that.
    _opened_by("org.gnome.Totem", "videos and music", *_all("video", _VIDEOS),
               *_all("audio", "mpeg mp4 x-wav ogg flac x-vorbis+ogg aac x-ms-wma")),
    _opened_by("libreoffice-writer", "text documents",
               *_all("application", f"{_OFFICE_TYPES}.wordprocessingml.document msword rtf vnd.oasis.opendocument.text "
                                    f"{_OFFICE_TYPES}.wordprocessingml.template"), "text/rtf"),
    _opened_by("libreoffice-calc", "spreadsheets",
               *_all("application", f"{_OFFICE_TYPES}.spreadsheetml.sheet vnd.ms-excel csv x-dif x-dbf "
                                    "vnd.oasis.opendocument.spreadsheet"), "text/csv"),
    _opened_by("libreoffice-impress", "presentations",
               *_all("application", f"{_OFFICE_TYPES}.presentationml.presentation vnd.ms-powerpoint "
                                    "vnd.oasis.opendocument.presentation")),
    _opened_by("org.gnome.FileRoller", "archives",
               *_all("application", "zip x-tar x-compressed-tar gzip x-bzip-compressed-tar x-xz-compressed-tar "
                                    "x-7z-compressed vnd.rar x-rar")),
    _opened_by("thunderbird", "mail", "x-scheme-handler/mailto", "message/rfc822"),
)  # fmt: skip

SETTINGS = _LIBREOFFICE + _GNOME + _APPLICATIONS + _DEFAULTS
"""All of them. Fonts and helper programs are packages: see `debian_applications`."""


def of(place: Place) -> list[tuple[str, str]]:
    """Name and value of a place's settings, as they stand in the table."""
    return [(setting.name, setting.value) for setting in SETTINGS if setting.place is place]


def libreoffice_registry() -> str:
    """LibreOffice's settings: the content of a user's `registrymodifications.xcu`, or of a file of the machine's."""
    items = []
    for setting in SETTINGS:
        if setting.place is Place.LIBREOFFICE:
            path, _, prop = setting.name.rpartition(":")
            final = ' oor:finalized="true"' if setting.fixed else ""
            items.append(
                f"<item oor:path={quoteattr(f'/org.openoffice.{path}')}><prop oor:name={quoteattr(prop)} "
                f'oor:op="fuse"{final}><value>{setting.value}</value></prop></item>'
            )
    return "\n".join(
        (
            '<?xml version="1.0" encoding="UTF-8"?>',
            '<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema" '
            'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">',
            *items,
            "</oor:items>\n",
        )
    )


def dconf_defaults() -> str:
    """The keyfile that `dconf compile` reads."""
    return _sections(of(Place.DCONF))


def vlc_configuration() -> str:
    """The content of `vlcrc`."""
    return _sections(of(Place.VLC))


def thunderbird_preferences() -> str:
    """A file of `pref` lines: defaults, which a profile may change."""
    return "".join(f'pref("{name}", {value});\n' for name, value in of(Place.THUNDERBIRD))


def gtk_settings() -> str:
    """The content of GTK's `settings.ini`."""
    return "[Settings]\n" + "".join(f"{name}={value}\n" for name, value in of(Place.GTK))


def default_applications() -> str:
    """The content of `mimeapps.list`."""
    rows = [f"{kind}={entry}\n" for types, entry in of(Place.DEFAULT_APPLICATION) for kind in types.split()]
    return "[Default Applications]\n" + "".join(rows)


def media_types(*entries: str) -> str:
    """The content of a `mimeinfo.cache`: which media types these entries are registered for, by the defaults."""
    rows = [
        f"{kind}={entry};\n"
        for types, entry in of(Place.DEFAULT_APPLICATION)
        for kind in types.split()
        if entry in entries
    ]
    return "[MIME Cache]\n" + "".join(rows)


def home_files() -> dict[str, str]:
    """Path below the home directory -> text, of a desktop of the profile "osworld"."""
    return {
        **dict(of(Place.HOME)),
        ".config/vlc/vlcrc": vlc_configuration(),
        ".config/libreoffice/4/user/registrymodifications.xcu": libreoffice_registry(),
    }


SYSTEM_FILES = {
    "libreoffice/registry/data/machine.xcu": libreoffice_registry(),
    "thunderbird/pref/machine.js": thunderbird_preferences(),
}
"""Path below `/etc` -> text, for every desktop in a sandbox: what holds whatever profile a task or a suite brings."""

EVERY_HOME = {".config/gtk-4.0/gtk.css": _POPOVERS}
"""Path below the home directory -> text, for every desktop: what GTK reads nowhere else."""


def _sections(settings: list[tuple[str, str]]) -> str:
    """Settings named "section/key" as an INI file."""
    rows = sorted((*name.rpartition("/")[::2], value) for name, value in settings)
    text = []
    for section, members in groupby(rows, key=itemgetter(0)):
        text.append(f"[{section}]\n" + "".join(f"{key}={value}\n" for _, key, value in members))
    return "\n".join(text)
