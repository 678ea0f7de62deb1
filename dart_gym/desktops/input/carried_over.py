"""The list of all state that a reused desktop could carry over to its next episode, and what becomes of each item.

A reset makes good what `CARRIED_OVER` says it does. Everything else changes only by a command on the desktop, or by
keys with which a browser, a window manager or an editor does more than edit a page; a desktop that has had one of
those is not used again. So a new kind of state needs no code to be harmless, only the ones that are reset do.
"""

from collections.abc import Collection
from enum import Enum

from dart_gym.core.actions import Action, Click, KeyDown, Press


class Remedy(Enum):
    """What a reset does about an item of state."""

    RESET = "the reset brings it back"
    RELOADED = "the page is begun anew by the reset"
    REPLACED = "the desktop is not used again"


CARRIED_OVER: dict[str, Remedy] = {
    "keys that are down": Remedy.RESET,
    "buttons that are down": Remedy.RESET,
    "Caps Lock, Num Lock, Scroll Lock": Remedy.RESET,
    "sticky and latched modifiers": Remedy.RESET,
    "keyboard group": Remedy.RESET,
    "selections: primary, secondary, clipboard": Remedy.RESET,
    "pointer position": Remedy.RESET,
    "text, undo, focus and scroll positions of the page": Remedy.RELOADED,
    "keyboard map, layout and xmodmap": Remedy.REPLACED,
    "key repeat, bell, screen saver, DPMS": Remedy.REPLACED,
    "pointer mapping and acceleration": Remedy.REPLACED,
    "access features of the keyboard": Remedy.REPLACED,
    "root window's properties, xrdb's resources, cursor": Remedy.REPLACED,
    "resolution and outputs": Remedy.REPLACED,
    "windows, tabs, dialogs and the window list": Remedy.REPLACED,
    "browser's storage, zoom, history, downloads, settings": Remedy.REPLACED,
    "files, processes, ports": Remedy.REPLACED,
    "session's environment, D-Bus, dconf": Remedy.REPLACED,
}

_COMMANDING = frozenset({"ctrl", "ctrlright", "alt", "altright", "win", "winright"})
_EDITING = frozenset("acvxyz") | {"left", "right", "up", "down", "home", "end", "backspace", "delete"}
_UNBOUND = frozenset("0123456789!\"#$%&'()*,./:;<>?@[\\]^`{|}~")
"""Characters with which Ctrl changes nothing: a model that learns to press `ctrl c` often presses one of them.

Digits choose among tabs, of which there is one, and take back a zoom, which `+` and `-` alone set.
"""
_HARMLESS = frozenset(
    {
        *("shift", "shiftright", "enter", "tab", "space", "backspace", "delete", "insert", "esc", "home", "end"),
        *("pageup", "pagedown", "up", "down", "left", "right", "capslock", "numlock", "scrolllock", "pause"),
        *("add", "subtract", "multiply", "divide", "decimal", "numenter", *(f"num{digit}" for digit in range(10))),
    }
)
"""Keys that only edit a page, or change a state that the reset brings back."""


def leaves_traces(action: Action) -> bool:
    """Return whether an action may change state that no reset brings back. Pure."""
    match action:
        case Press(keys=keys):
            return not _is_harmless(keys)
        case KeyDown(key=key):
            return not _edits(key)
        case Click(modifiers=modifiers):
            return not _COMMANDING.isdisjoint(modifiers)
    return False


def _is_harmless(keys: Collection[str]) -> bool:
    others = {key.lower() for key in keys} - {"ctrl", "ctrlright"}
    shifts = others & {"shift", "shiftright"}
    if len(others) == len(set(keys)):
        return all(map(_edits, keys)) and not (shifts and "esc" in others)  # the browser's tasks
    commands = {key for key in others if len(key) == 1 or key == "delete"}
    return others - shifts <= _EDITING | _UNBOUND and not (shifts and commands)


def _edits(key: str) -> bool:
    return key in _HARMLESS or len(key) == 1
