"""The keysyms that actions ask for: by the names of keys, and by characters."""

from dart_gym.core.keys import keysym_name
from dart_gym.core.keysyms import keysym_value
from dart_gym.desktops.input.keyboard import UNICODE

_CONTROL = {"\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape", "\x7f": "Delete"}


def keysym_of(key: str) -> int:
    """Return the X keysym of a canonical key name or a character.

    Raises:
        ValueError: if no keyboard can type it.
    """
    name = _CONTROL.get(key) or (keysym_name(key) if len(key) > 1 else None)
    if name is not None:
        if (value := keysym_value(name)) is None:
            raise ValueError(f"X has no keysym {name!r}")
        return value
    code = ord(key)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        raise ValueError(f"no key types the character U+{code:04X}")
    return code if code < 0x100 else UNICODE | code
