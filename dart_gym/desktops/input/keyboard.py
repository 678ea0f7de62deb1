"""Which X keycodes make a character: those of the current map, or spare ones mapped to it on demand.

Invariants:
    - A program looks a keycode up when it handles the key event, some time after the event was sent. So a spare
      keycode keeps its meaning until it has to be given to another character, least recently used first, and
      `Batch.overwrites` tells where programs must catch up before.
    - Only keycodes without a meaning are spare. (Those of multimedia keys look so too, but Chromium goes by the keycode
      where it does not know the keysym: typing Chinese on them navigates back.)
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dart_gym.core.keys import keysym_name
from dart_gym.core.keysyms import keysym_value

_CONTROL = {"\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape", "\x7f": "Delete"}
_UNICODE = 0x01000000
_FIRST_SPARE = 9  # programs take keycode 8 for "no key"


def keysym_of(key: str) -> int:
    """X keysym of a canonical key name or a character. Raises `ValueError`: no keyboard can type it."""
    name = _CONTROL.get(key) or (keysym_name(key) if len(key) > 1 else None)
    if name is not None:
        if (value := keysym_value(name)) is None:
            raise ValueError(f"X has no keysym {name!r}")
        return value
    code = ord(key)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        raise ValueError(f"no key types the character U+{code:04X}")
    return code if code < 0x100 else _UNICODE | code


@dataclass(frozen=True, slots=True)
class Keystroke:
    """One key to press: its keycode, and whether Shift must be held."""

    keycode: int
    shift: bool = False


@dataclass(slots=True)
class Batch:
    """Keystrokes for one go after `remap` (keycode -> keysym); `overwrites`: a key had a meaning that may be needed."""

    remap: dict[int, int] = field(default_factory=dict)
    overwrites: bool = False
    keystrokes: list[Keystroke] = field(default_factory=list)


class Keyboard:
    """The map of one X server, as this process knows and changes it; `modifiers` act so whatever their keysyms are."""

    def __init__(self, mapping: Sequence[Sequence[int]], first_keycode: int, modifiers: Collection[int] = ()) -> None:
        self._keystrokes: dict[int, Keystroke] = {}
        self._spare: OrderedDict[int, int] = OrderedDict()  # keycode -> keysym, least recently used first; 0: none yet
        for keycode, keysyms in enumerate(mapping, first_keycode):
            if any(keysyms) or keycode in modifiers or keycode < _FIRST_SPARE:
                for level, keysym in enumerate(keysyms[:2]):
                    if keysym:
                        self._keystrokes.setdefault(keysym, Keystroke(keycode, level == 1))
            else:
                self._spare[keycode] = 0

    def plan(self, keysyms: list[int]) -> list[Batch]:
        """Cut a sequence of keysyms into batches, each of which needs no keycode in two meanings."""
        batches = [Batch()]
        used: set[int] = set()  # spare keycodes that the current batch relies on
        for keysym in keysyms:
            keystroke = self._keystrokes.get(keysym)
            if keystroke is None:
                keycode = next(iter(self._spare))
                if keycode in used:
                    batches.append(Batch())
                    used.clear()
                keystroke = self._assign(keycode, keysym, batches[-1])
            if keystroke.keycode in self._spare:
                self._spare.move_to_end(keystroke.keycode)
                used.add(keystroke.keycode)
            batches[-1].keystrokes.append(keystroke)
        return batches

    def _assign(self, keycode: int, keysym: int, batch: Batch) -> Keystroke:
        if self._spare[keycode]:
            del self._keystrokes[self._spare[keycode]]
            batch.overwrites = True
        self._spare[keycode] = keysym
        self._keystrokes[keysym] = Keystroke(keycode)
        batch.remap[keycode] = keysym
        return self._keystrokes[keysym]


def runs(remap: dict[int, int]) -> list[tuple[int, list[int]]]:
    """Group new meanings by adjoining keycodes: (first keycode, keysyms); programs re-read the map once for each."""
    grouped: list[tuple[int, list[int]]] = []
    for keycode in sorted(remap):
        if not grouped or keycode != grouped[-1][0] + len(grouped[-1][1]):
            grouped.append((keycode, []))
        grouped[-1][1].append(remap[keycode])
    return grouped
