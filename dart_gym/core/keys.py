"""The one vocabulary of keys: canonical names, and the aliases that models and libraries use for them.

Canonical names are lower-case pyautogui names (OSWorld's vocabulary): "ctrl", "enter", "pagedown", "f5", "a", "<".
"""

import re

from dart_gym.core.suggestions import suggest

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
}

KEYS = frozenset(_NAMED)
_COMMANDING = frozenset({"ctrl", "ctrlright", "alt", "win", "winright"})  # altright makes characters
_JOINT = re.compile(r"(?<=.)\+(?=.)")


def canonical_key(name: str) -> str:
    """The canonical name of a key, its alias, or a single character. Raises `ValueError`, suggesting near names."""
    if len(name) == 1 and name.isprintable() and name != " ":
        return name
    lowered = name.lower().strip() or name
    lowered = _ALIASES.get(lowered, lowered)
    if lowered in _NAMED or (len(lowered) == 1 and lowered.isprintable()):
        return lowered
    compact = lowered.replace("_", "").replace("-", "").replace(" ", "")
    compact = _ALIASES.get(compact, compact)
    if compact in _NAMED:
        return compact
    hint = suggest(lowered, [*_NAMED, *_ALIASES], count=3, otherwise="a key is a character or a name such as 'enter'")
    raise ValueError(f"unknown key {name!r}; {hint}")


def chord_keys(text: str) -> list[str]:
    """The names of keys in one text: "ctrl+c", "ctrl++", "+", "enter"."""
    return _JOINT.split(text)


def in_chord(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Canonical keys as a chord presses them: a capital beside ctrl, alt or win is the key, and asks for no shift."""
    if _COMMANDING.isdisjoint(keys):
        return keys
    return tuple(key.lower() if len(key) == 1 and len(key.lower()) == 1 else key for key in keys)


def keysym_name(key: str) -> str:
    """X keysym name of a named key; a single character is returned as it is (the X layer maps it by code point)."""
    return _NAMED.get(key, key)
