"""The one vocabulary of keys: canonical names, and the aliases that models and libraries use for them.

Canonical names are lower-case pyautogui names (OSWorld's vocabulary): "ctrl", "enter", "pagedown", "f5", "a", "<".
Keys that it has no name for keep that of X: "XF86AudioNext", "Hyper_L", "KP_Begin".
"""

import re
import unicodedata

from dart_gym.core.keysyms import keysym_meaning
from dart_gym.core.suggestions import near_names

_NAMED = {
    # canonical name: X keysym name
    "ctrl": "Control_L",
    "ctrlright": "Control_R",
    "shift": "Shift_L",
    "shiftright": "Shift_R",
    "alt": "Alt_L",
    "altright": "Alt_R",
    "win": "Super_L",
    "winright": "Super_R",
    "menu": "Menu",
    "enter": "Return",
    "tab": "Tab",
    "space": "space",
    "backspace": "BackSpace",
    "delete": "Delete",
    "insert": "Insert",
    "esc": "Escape",
    "home": "Home",
    "end": "End",
    "pageup": "Page_Up",
    "pagedown": "Page_Down",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "capslock": "Caps_Lock",
    "numlock": "Num_Lock",
    "scrolllock": "Scroll_Lock",
    "printscreen": "Print",
    "pause": "Pause",
    "volumeup": "XF86AudioRaiseVolume",
    "volumedown": "XF86AudioLowerVolume",
    "volumemute": "XF86AudioMute",
    "playpause": "XF86AudioPlay",
    **{f"f{i}": f"F{i}" for i in range(1, 25)},
    **{f"num{i}": f"KP_{i}" for i in range(10)},
    "add": "KP_Add",
    "subtract": "KP_Subtract",
    "multiply": "KP_Multiply",
    "divide": "KP_Divide",
    "decimal": "KP_Decimal",
    "numenter": "KP_Enter",
}

_ALIASES = {
    **{keysym.lower(): name for name, keysym in _NAMED.items()},  # xdotool's names
    "control": "ctrl",
    "ctrlleft": "ctrl",
    "controlleft": "ctrl",
    "control_l": "ctrl",
    "control_r": "ctrlright",
    "shiftleft": "shift",
    "shift_l": "shift",
    "shift_r": "shiftright",
    "altleft": "alt",
    "alt_l": "alt",
    "alt_r": "altright",
    "altgr": "altright",
    "option": "alt",
    "optionleft": "alt",
    "optionright": "altright",
    "super": "win",
    "super_l": "win",
    "super_r": "winright",
    "meta": "win",
    "cmd": "win",
    "command": "win",
    "windows": "win",
    "winleft": "win",
    "return": "enter",
    "linefeed": "enter",
    "\n": "enter",
    "\r": "enter",
    "\t": "tab",
    " ": "space",
    "spacebar": "space",
    "back": "backspace",
    "bksp": "backspace",
    "del": "delete",
    "ins": "insert",
    "escape": "esc",
    "page_up": "pageup",
    "pgup": "pageup",
    "prior": "pageup",
    "page_down": "pagedown",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
    "next": "pagedown",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "uparrow": "up",
    "downarrow": "down",
    "leftarrow": "left",
    "rightarrow": "right",
    "caps_lock": "capslock",
    "num_lock": "numlock",
    "prtsc": "printscreen",
    "prtscr": "printscreen",
    "prntscrn": "printscreen",
    "print": "printscreen",
    "apps": "menu",
    "plus": "+",
    "minus": "-",
    "comma": ",",
    "period": ".",
    "dot": ".",
    "slash": "/",
    "backslash": "\\",
    "semicolon": ";",
    "equal": "=",
    "quote": "'",
    "grave": "`",
    "kp_enter": "numenter",
    # The number pad without Num Lock, and keys whose name in X says more than what they do.
    "kp_home": "home",
    "kp_left": "left",
    "kp_up": "up",
    "kp_right": "right",
    "kp_down": "down",
    "kp_prior": "pageup",
    "kp_page_up": "pageup",
    "kp_next": "pagedown",
    "kp_page_down": "pagedown",
    "kp_end": "end",
    "kp_insert": "insert",
    "kp_delete": "delete",
    "kp_space": "space",
    "kp_tab": "tab",
    "kp_equal": "=",
    "kp_separator": ",",
    **{f"kp_f{number}": f"f{number}" for number in range(1, 5)},
    "iso_enter": "enter",
    "iso_level3_shift": "altright",
    "mode_switch": "altright",
    "meta_l": "win",
    "meta_r": "winright",
    "sys_req": "printscreen",
    # Names of browsers' KeyboardEvent.code, which Playwright takes, too.
    **{f"key{letter}": letter for letter in "abcdefghijklmnopqrstuvwxyz"},
    **{f"digit{digit}": str(digit) for digit in range(10)},
    **{f"numpad{digit}": f"num{digit}" for digit in range(10)},
    "numpadenter": "numenter",
    "numpadadd": "add",
    "numpadsubtract": "subtract",
    "numpadmultiply": "multiply",
    "numpaddivide": "divide",
    "numpaddecimal": "decimal",
    "metaleft": "win",
    "metaright": "winright",
    "shiftright": "shiftright",
    "controlright": "ctrlright",
    "controlormeta": "ctrl",
    "contextmenu": "menu",
    "backquote": "`",
    "bracketleft": "[",
    "bracketright": "]",
    # With the side before the name, and what else models write.
    **{f"{side}{name}": name for side in ("left", "l") for name in ("ctrl", "shift", "alt", "win")},
    **{f"{side}{name}": f"{name}right" for side in ("right", "r") for name in ("ctrl", "shift", "alt", "win")},
    "leftcontrol": "ctrl",
    "rightcontrol": "ctrlright",
    "os": "win",
    "mute": "volumemute",
    **{f"kp{digit}": f"num{digit}" for digit in range(10)},
}
_PICTURES = {
    "⌘": "win", "⌃": "ctrl", "⇧": "shift", "⌥": "alt", "⎇": "alt", "⊞": "win", "❖": "win", "↵": "enter", "⏎": "enter",
    "↩": "enter", "⌤": "numenter", "⌫": "backspace", "⌦": "delete", "⇥": "tab", "↹": "tab", "⎋": "esc", "␣": "space",
    "⇪": "capslock", "⇞": "pageup", "⇟": "pagedown", "↖": "home", "↘": "end", "↑": "up", "↓": "down", "←": "left",
    "→": "right",
}  # fmt: skip
"""What is drawn on keys: as a key it is that one. `Type` writes the character."""

KEYS = frozenset(_NAMED)
_MODIFIERS = frozenset({"ctrl", "ctrlright", "shift", "shiftright", "alt", "altright", "win", "winright"})
_OF_KEYSYM = {keysym: name for name, keysym in _NAMED.items()}
_LONGEST = 60
_COMMANDING = frozenset({"ctrl", "ctrlright", "alt", "win", "winright"})  # altright makes characters
_JOINT = re.compile(r"(?<=.)\+(?=.)")


def canonical_key(name: str) -> str:
    """The canonical name of a key, its alias, a name of X, the picture on it, or a single character.

    Raises:
        ValueError: there is no such key; the message suggests near names.
    """
    if name in _PICTURES:
        return _PICTURES[name]
    if is_character(name) and name != " ":
        return name
    lowered = name.lower().strip() or name
    lowered = _ALIASES.get(lowered, lowered)
    if lowered in _NAMED or is_character(lowered):
        return lowered
    compact = lowered.replace("_", "").replace("-", "").replace(" ", "")
    compact = _ALIASES.get(compact, compact)
    if compact in _NAMED and not ("-" in lowered and compact in _MODIFIERS):  # alt-left is two keys, page-down is one
        return compact
    if len(name) <= _LONGEST and (found := keysym_meaning(name.strip())):
        return _OF_KEYSYM.get(found, _PICTURES.get(found, found))
    if len(name) <= _LONGEST and not name.isascii() and (plain := unicodedata.normalize("NFKC", name)) != name:
        if plain.isascii() or is_character(plain):
            return canonical_key(plain)  # full-width letters, a letter and its accent apart
    shown = repr(name if len(name) <= _LONGEST else name[:_LONGEST] + "...")
    raise ValueError(f"unknown key {shown}; {_hint(lowered)}")


def is_character(name: str) -> bool:
    """Return whether a name is one character that a key can make: a printable one, a kind of space or a soft hyphen."""
    return len(name) == 1 and (name.isprintable() or unicodedata.category(name) in ("Zs", "Cf"))


def _hint(name: str) -> str:
    """Near names, one for each key."""
    near: dict[str, str] = {}
    for found in near_names(name, [*_NAMED, *_ALIASES], count=6):
        near.setdefault(_ALIASES.get(found, found), found)
    names = list(near.values())[:3]
    if not names:
        return "a key is a character or a name such as 'enter'"
    return f"did you mean {' or '.join(map(repr, names))}?"


def chord_keys(text: str) -> list[str]:
    """The names of keys in one text: "ctrl+c", "ctrl++", "+", "enter"."""
    return _JOINT.split(text)


def in_chord(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Canonical keys as a chord presses them: a capital with ctrl, alt or win is the key, and asks for no shift."""
    if _COMMANDING.isdisjoint(keys):
        return keys
    return tuple(key.lower() if len(key) == 1 and len(key.lower()) == 1 else key for key in keys)


def keysym_name(key: str) -> str:
    """X keysym name of a named key; a single character is returned as it is (the X layer maps it by code point)."""
    return _NAMED.get(key, key)
