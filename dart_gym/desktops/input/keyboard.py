"""Which X keycodes make a character: those of the current map, or spare ones mapped to it on demand.

Programs may change the map at any time: `Keyboard.update` takes the new one in, and the spare keys that it lost.

Invariants:
    - A program looks a keycode up when it handles the key event, some time after the event was sent. So a spare
      keycode keeps its meaning until it has to be given to another character, least recently used first, and
      `Batch.overwrites` tells where programs must catch up before.
    - Only keycodes without a meaning are spare. (Those of multimedia keys look so too, but Chromium goes by the keycode
      where it does not know the keysym: typing Chinese on them navigates back.)
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dart_gym.desktops.input.key_map import LOCK, SHIFT, KeyMap, Stroke

UNICODE = 0x01000000
"""Added to the code point of a character without a keysym of its own."""
_OLD_KEYSYMS = {
    **{1: "iso8859_2", 2: "iso8859_3", 3: "iso8859_4", 5: "iso8859_6", 6: "koi8_u"},
    **{0x0C: "iso8859_8", 0x0D: "tis_620", 0x13: "iso8859_15"},
}
"""Encodings whose upper half the keysyms of a page have, by the page."""
_FIRST_SPARE = 9  # programs take keycode 8 for "no key"
_LETTER_KEYS = {
    ord(letter): first + place
    for first, row in ((24, "qwertyuiop"), (38, "asdfghjkl"), (52, "zxcvbnm"))
    for place, letter in enumerate(row)
}
"""The keycodes of Latin letters on a US keyboard, by keysym."""


def spelled(keysym: int) -> int:
    """The keysym by which actions name the same character; layouts have older ones too (Cyrillic, the euro)."""
    codec = _OLD_KEYSYMS.get(keysym >> 8)
    if 0x20A0 <= keysym <= 0x20AC:
        return UNICODE | keysym
    if codec is None or keysym & 0xFF < 0xA0:
        return keysym
    try:
        code = ord(bytes([keysym & 0xFF]).decode(codec))
    except UnicodeDecodeError:
        return keysym
    if codec == "koi8_u" and not 0x400 <= code < 0x500:
        return keysym
    return code if code < 0x100 else UNICODE | code


@dataclass(slots=True)
class Batch:
    """Strokes for one go after `remap` (keycode -> keysym); `overwrites`: a key had a meaning that may be needed."""

    remap: dict[int, int] = field(default_factory=dict)
    overwrites: bool = False
    strokes: list[Stroke] = field(default_factory=list)


class NoKeyError(ValueError):
    """The keyboard's map has no way to make what is asked for."""


class Keyboard:
    """What this process types with on one X server: the keys of its map, and spare ones.

    `spare` names the keycodes that another process used as spare ones, with their keysyms.
    """

    def __init__(self, key_map: KeyMap, spare: Sequence[tuple[int, int]] = ()) -> None:
        self._spare = OrderedDict(spare)  # keycode -> keysym, least recently used first; 0: none yet
        self.update(key_map)

    @property
    def spare(self) -> list[tuple[int, int]]:
        """The spare keycodes with their keysyms (0: none yet), least recently used first."""
        return list(self._spare.items())

    def update(self, key_map: KeyMap) -> None:
        """Take in the map as it is now; spare keys that it left alone keep their meaning and their turn."""
        self.key_map = key_map
        modifiers = {keycode for row in key_map.modifiers for keycode in row}
        rows = {keycode: key_map.row(keycode) for keycode in key_map.keys if keycode >= _FIRST_SPARE}
        free = {
            keycode
            for keycode, row in rows.items()
            if keycode not in modifiers and (not row or row == {self._spare.get(keycode)})
        }
        turns = [keycode for keycode in self._spare if keycode in free]
        known = self._spare
        self._spare = OrderedDict(
            (keycode, known[keycode] if rows[keycode] else 0) for keycode in [*turns, *sorted(free.difference(turns))]
        )
        self._strokes: dict[int, Stroke] = {}
        self._of_layout: dict[int, Stroke] = {}  # those on keys that are not spare
        for keysym, stroke in key_map.strokes():
            self._strokes.setdefault(spelled(keysym), stroke)
            if stroke.keycode not in self._spare:
                self._of_layout.setdefault(spelled(keysym), stroke)

    def missing_letters(self, keysyms: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return what lets the Latin letters of a command be struck on their own keys under a layout without them.

        Programs look up a command by its letter and by its key: Chromium ignores Ctrl+A on a spare key. So the letters
        become a second group of the keys that they have on a US keyboard, as in the layout "ru,us".

        Returns:
            By keycode the keysyms of the core protocol's map, or an empty dict if no letter is missing.
        """
        if not any(keysym in _LETTER_KEYS and keysym not in self._of_layout for keysym in keysyms):
            return {}
        added: dict[int, tuple[int, ...]] = {}
        for letter, keycode in _LETTER_KEYS.items():
            groups = self.key_map.keys.get(keycode, [])
            if letter not in self._of_layout and len(groups) == 1:
                plain, shifted, third, fourth = _levels(groups[0])
                added[keycode] = (plain, shifted, letter, letter - 0x20, third, fourth)
        return added

    def next_batch(self, keysyms: Sequence[int], *, command: bool = False) -> Batch:
        """Return strokes for as much of a sequence of keysyms as needs no keycode in two meanings.

        Args:
            keysyms: what is to be struck, in order.
            command: whether the keys are a command's, for which keys of the layout go before spare ones.

        Raises:
            NoKeyError: if no key is free.
        """
        batch = Batch()
        used: set[int] = set()  # spare keycodes that the batch relies on
        for keysym in keysyms:
            stroke = (self._of_layout.get(keysym) if command else None) or self._strokes.get(keysym)
            if stroke is None:
                keycode = next(iter(self._spare), None)
                if keycode is None:
                    raise NoKeyError(f"the keyboard's map has no key for the keysym {keysym:#x}, and none to spare")
                if keycode in used:
                    break
                stroke = self._assign(keycode, keysym, batch)
            if stroke.keycode in self._spare:
                self._spare.move_to_end(stroke.keycode)
                used.add(stroke.keycode)
            batch.strokes.append(stroke)
        return batch

    def _assign(self, keycode: int, keysym: int, batch: Batch) -> Stroke:
        if self._spare[keycode]:
            self._strokes.pop(self._spare[keycode], None)
            batch.overwrites = True
        self._spare[keycode] = keysym
        self._strokes[keysym] = Stroke(keycode)
        batch.remap[keycode] = keysym
        return self._strokes[keysym]


def _levels(group: Sequence[tuple[int, int]]) -> tuple[int, int, int, int]:
    """Return what a key makes plain, with Shift, with AltGr, and with both, from pairs of modifiers and keysym."""
    found: dict[tuple[bool, bool], int] = {}
    for modifiers, keysym in group:
        if not modifiers & LOCK:
            found.setdefault((bool(modifiers & ~SHIFT), bool(modifiers & SHIFT)), keysym)
    plain = found.get((False, False), 0)
    return plain, found.get((False, True), plain), found.get((True, False), 0), found.get((True, True), 0)


def runs(remap: dict[int, int]) -> list[tuple[int, list[int]]]:
    """Group new meanings by adjoining keycodes: (first keycode, keysyms); programs re-read the map once for each."""
    grouped: list[tuple[int, list[int]]] = []
    for keycode in sorted(remap):
        if not grouped or keycode != grouped[-1][0] + len(grouped[-1][1]):
            grouped.append((keycode, []))
        grouped[-1][1].append(remap[keycode])
    return grouped
