"""The keyboard map of an X server as a value, read from the reply to XKB's GetMap.

The core protocol's table of keysyms does not say which modifiers choose a keysym (a key type does), so a program that
types by it is wrong on layouts with AltGr, on number pads, and after `xmodmap`.

Invariants:
    - Pure: bytes in, values out.
    - Only strokes that a program can read without a command's modifiers count: Control, Alt and Super are not in them.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHIFT = 1
LOCK = 2
CONTROL = 4
_NUM_LOCK, _LEVEL_SHIFTS = (
    0xFF7F,
    frozenset({0xFE03, 0xFE11, 0xFF7E}),
)  # ISO_Level3_Shift, ISO_Level5_Shift, Mode_switch
_SHIFTS = frozenset({0xFFE1, 0xFFE2})
_NUMBER_PAD = range(0xFF80, 0xFFBE)
_HEADER = struct.Struct("=2xBBHBBBBHB")
_TYPE = struct.Struct("=BBHBBBx")
_ENTRY = "=BBBBH2x"
_KEY = "=4BBBH"
_HEADER_SIZE = 32  # after the 8 bytes that every reply begins with
_TYPES, _SYMS = 1, 2  # in the bits of what the reply has


@dataclass(frozen=True, slots=True)
class Stroke:
    """A way of making a keysym: a key, the modifiers that must act and no others, and the group."""

    keycode: int
    modifiers: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class KeyMap:
    """What each key makes.

    Attributes:
        keys: by keycode, for each group the pairs of modifiers (a mask) and the keysym that they choose.
        modifiers: for each of the eight modifiers the keycodes that have it.
    """

    keys: dict[int, list[list[tuple[int, int]]]]
    modifiers: Sequence[Sequence[int]]

    def row(self, keycode: int) -> set[int]:
        """All keysyms of a key."""
        return {keysym for group in self.keys.get(keycode, []) for _, keysym in group}

    def mask_of(self, keysyms: frozenset[int]) -> int:
        """The modifiers, as a mask, that keys with one of the keysyms have."""
        return sum(1 << n for n, row in enumerate(self.modifiers) if any(self.row(code) & keysyms for code in row))

    @property
    def num_lock(self) -> int:
        """The modifier that Num Lock locks, as a mask; 0 without one."""
        return self.mask_of(frozenset({_NUM_LOCK})) & ~(SHIFT | LOCK | CONTROL)

    @property
    def choosing(self) -> int:
        """Mask of the modifiers that choose one of a key's characters, and do not make a command of it."""
        return SHIFT | self.num_lock | self.mask_of(_LEVEL_SHIFTS) & ~(LOCK | CONTROL)

    @property
    def shift_key(self) -> int | None:
        """A key that is Shift; None where the map has none."""
        return next((code for code in self.modifiers[0] if code and self.row(code) & _SHIFTS), None)

    def strokes(self) -> Iterator[tuple[int, Stroke]]:
        """Every keysym with a stroke that makes it: keys that need Shift at most first, by keycode."""
        choosing = self.choosing
        found = [
            (
                group,
                modifiers & ~SHIFT > 0 and keysym not in _NUMBER_PAD,
                keycode,
                modifiers.bit_count(),
                modifiers,
                keysym,
            )
            for keycode, groups in self.keys.items()
            for group, levels in enumerate(groups)
            for modifiers, keysym in levels
            if _types(keysym, modifiers, choosing)
        ]
        for group, _, keycode, _, modifiers, keysym in sorted(found):
            yield keysym, Stroke(keycode, modifiers, group)


def _types(keysym: int, modifiers: int, choosing: int) -> bool:
    """Return whether programs take a keysym with these modifiers for what it says.

    Many read the number pad with Shift as cursor keys, whatever the map says.
    """
    return bool(keysym) and not modifiers & ~choosing and not (keysym in _NUMBER_PAD and modifiers & SHIFT)


def parse_key_map(reply: bytes, modifiers: Sequence[Sequence[int]]) -> KeyMap:
    """Read a reply to GetMap, from its ninth byte on, that has key types and keysyms."""
    _, _, present, _, types_count, _, first, _, keys_count = _HEADER.unpack_from(reply)
    if present & (_TYPES | _SYMS) != _TYPES | _SYMS:
        raise ValueError("the keyboard map lacks its types or its keysyms")
    types, offset = [], _HEADER_SIZE
    for _ in range(types_count):
        chosen, offset = _read_type(reply, offset)
        types.append(chosen)
    keys: dict[int, list[list[tuple[int, int]]]] = {}
    for keycode in range(first, first + keys_count):
        *indices, groups, width, count = struct.unpack_from(_KEY, reply, offset)
        offset += struct.calcsize(_KEY)
        keysyms = struct.unpack_from(f"={count}I", reply, offset)
        offset += 4 * count
        keys[keycode] = [
            [
                (mask, keysyms[group * width + level])
                for mask, level in types[indices[group]]
                if level < width and keysyms[group * width + level]
            ]
            for group in range(groups & 0x0F)
        ]
    return KeyMap(keys, modifiers)


def _read_type(reply: bytes, offset: int) -> tuple[list[tuple[int, int]], int]:
    """The pairs of modifiers and level of a key type, and where the next one begins."""
    _, _, _, _, entries, preserve = _TYPE.unpack_from(reply, offset)
    offset += _TYPE.size
    chosen = []
    for _ in range(entries):
        active, mask, level, _, _ = struct.unpack_from(_ENTRY, reply, offset)
        offset += struct.calcsize(_ENTRY)
        if active and mask:
            chosen.append((mask, level))
    offset += 4 * entries if preserve else 0
    return [(0, 0), *chosen], offset
