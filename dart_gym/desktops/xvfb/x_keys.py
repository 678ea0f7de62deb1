"""Keys of one desktop through XTEST: a stroke means what was asked for, in any state and map of the keyboard.

Invariants:
    - The map is compared with the known one while the server is grabbed, and the events are sent in the same grab: a
      program that changes the map comes before or after them.
    - Locks and group (Caps Lock, Num Lock, another layout) are set aside for the events alone. A key that changes
      them keeps its effect. So are access features that drop keys (SlowKeys, BounceKeys) or move the pointer by them.
"""

import asyncio
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from Xlib import X

from dart_gym.desktops.input.key_map import LOCK, SHIFT, KeyMap, Stroke, parse_key_map
from dart_gym.desktops.input.keyboard import Batch, Keyboard, NoKeyError, runs
from dart_gym.desktops.xvfb.x_client import XClient
from dart_gym.desktops.xvfb.x_keyboard_state import LockState, XKeyboardState

_STROKES_IN_A_GO = 64
_CATCH_UP_S = 1.0
_BLIND_PACE_S = 0.1  # for a program that does not say how far it is: there is nothing to wait for
_MAX_CHANGES = 20
_ANSWERS = 2  # one when a program has heard of a new map and asks for it, one when it has it
_NEUTRAL = LockState()
_MODIFIERS = (range(0xFFE1, 0xFFEF), range(0xFE01, 0xFE14), (0xFF7E, 0xFF7F, 0xFF14))
"""Keysyms that change the keyboard's state: they act on the state as it is."""

_COMMANDS = frozenset({0xFFE3, 0xFFE4, *range(0xFFE7, 0xFFEF)})
"""Control, Meta, Alt, Super and Hyper: they make a command of the key that follows."""


@dataclass(frozen=True, slots=True)
class KeyMemory:
    """State with which another process can continue with the same keyboard.

    Attributes:
        spare: the spare keycodes with the keysyms that they were given, least recently used first.
        single: the keycodes of the keys that are down alone, by keysym.
        map_sum: checksum of the map that programs know; None if that is not known.
    """

    spare: Sequence[tuple[int, int]] = ()
    single: Mapping[int, int] = field(default_factory=dict)
    map_sum: int | None = None


class XKeys:
    """The keyboard of one desktop; `press` sends a key's event and notes what is down."""

    def __init__(self, client: XClient, press: Callable[[int, bool], None], memory: KeyMemory | None = None) -> None:
        self._client, self._press = client, press
        self.display = client.display
        self._state = XKeyboardState(self.display)
        self._raw = self._state.read_map()
        memory = memory or KeyMemory(map_sum=zlib.crc32(self._raw))
        self._keyboard = Keyboard(self._parsed(self._raw), memory.spare)
        self._chord: list[int] = []  # keycodes of the one that is down
        self._aside: tuple[LockState, LockState] | None = None  # locks before the chord, and in it
        self._map_sum = memory.map_sum
        if self._map_sum != zlib.crc32(self._raw):
            self._raw = b""  # another one than the last process knew: it is learned before it is used
        self._single = dict(memory.single)
        self._unread = False  # whether the map may be one that programs have heard of, but not read

    @property
    def memory(self) -> KeyMemory:
        """Return the state with which another process can continue."""
        if self._raw:
            self._map_sum = None if self._unread else zlib.crc32(self._raw)
        return KeyMemory(self._keyboard.spare, dict(self._single), self._map_sum)

    async def type(self, keysyms: Sequence[int]) -> None:
        """Strike keys one after the other."""
        rest = list(keysyms)
        while rest:
            batch = await self._ready(rest)
            if self._unread:
                await self._have_it_read()
            for start in range(0, len(batch.strokes), _STROKES_IN_A_GO):
                strokes = batch.strokes[start : start + _STROKES_IN_A_GO]
                if not self._in_a_grab(functools.partial(self.strike, strokes)):
                    await self._learn()
                    break
                del rest[: len(strokes)]
                await asyncio.sleep(0)  # a long text leaves room for others

    async def hold(self, keysyms: Sequence[int]) -> None:
        """Press a chord's keys, with Shift before the first that needs it."""
        command = any(keysym in _COMMANDS for keysym in keysyms) or self._holds_a_command()
        if command:
            await self._place_letters(keysyms)
        await self._carry_out(keysyms, lambda strokes: self._hold(keysyms, strokes), command=command)

    def let_go(self) -> None:
        """Release the chord, and bring the locks back, but for what the chord has changed of them."""
        for keycode in reversed(self._chord):
            self._press(keycode, False)
        self._chord = []
        if self._aside is not None:
            (before, during), self._aside = self._aside, None
            _, after, _ = self._state.held()
            changed = after.modifiers ^ during.modifiers
            group = (before.group + after.group - during.group) % 4
            self._state.lock(LockState(before.modifiers ^ changed, group))

    async def press_alone(self, keysym: int, down: bool) -> None:
        """Press or release one key, without Shift; what was pressed is released even if the map has changed."""
        if not down and keysym in self._single:
            self._press(self._single.pop(keysym), False)
            return
        await self._carry_out([keysym], lambda strokes: self._press_alone(keysym, strokes[0], down))

    def neutralize(self) -> None:
        """Bring the keyboard into the state of a fresh desktop: nothing down, locked or latched, the first group."""
        self._chord, self._aside = [], None
        self._single.clear()
        for keycode in self._keys_down():
            self._press(keycode, False)
        self._state.lock(_NEUTRAL)

    # The map

    async def _carry_out(
        self, keysyms: Sequence[int], send: Callable[[list[Stroke]], None], *, command: bool = False
    ) -> None:
        for _ in range(_MAX_CHANGES):
            batch = await self._ready(keysyms, command=command)
            if len(batch.strokes) < len(keysyms):
                raise NoKeyError("the keyboard's map has too few free keys for this chord")
            if self._in_a_grab(functools.partial(send, batch.strokes)):
                return
            await self._learn()
        raise NoKeyError("the keyboard's map changes all the time")

    async def _place_letters(self, keysyms: Sequence[int]) -> None:
        """Give the Latin letters of a command keys of their own, if the layout has none."""
        if not self._is_known():
            await self._learn()
        rows = self._keyboard.missing_letters(keysyms)
        for keycode, row in rows.items():
            self.display.change_keyboard_mapping(keycode, [row])
        if rows:
            await self._learn()

    def _holds_a_command(self) -> bool:
        """Return whether a modifier is down that makes a command of the next key."""
        base, _, _ = self._state.held()
        return bool(base & ~(self._keyboard.key_map.choosing | SHIFT | LOCK))

    async def _ready(self, keysyms: Sequence[int], *, command: bool = False) -> Batch:
        """As many strokes as one map has, once programs know it."""
        for _ in range(_MAX_CHANGES):
            batch = self._keyboard.next_batch(keysyms, command=command)
            if not batch.remap:
                return batch
            if not self._is_known():
                await self._learn()
                continue
            if batch.overwrites:
                await self._catch_up()  # else earlier keys would be read with their new meanings
            for first, meanings in runs(batch.remap):
                self.display.change_keyboard_mapping(first, [(meaning, meaning) for meaning in meanings])
            await self._learn()
        raise NoKeyError("the keyboard's map changes all the time")

    def _in_a_grab(self, send: Callable[[], None]) -> bool:
        """Send events in one go; False, and nothing is sent, where the map is another one by now."""
        self.display.grab_server()
        try:
            known = self._is_known()
            if known:
                self._past_filters(send)
        finally:
            self.display.ungrab_server()
            self.display.sync()
        return known

    def _past_filters(self, send: Callable[[], None]) -> None:
        """Send events while no access feature drops or changes them."""
        filters = self._state.filters()
        if not filters:
            send()
            return
        self._state.switch_filters(0)
        try:
            send()
        finally:
            self._state.switch_filters(filters)

    def _is_known(self) -> bool:
        return self._state.read_map() == self._raw

    async def _learn(self) -> None:
        """Read the map, and let programs do the same: Chromium hears of it on one connection, of keys on another."""
        self._raw = self._state.read_map()
        self._keyboard.update(self._parsed(self._raw))
        self._unread = True
        for _ in range(_ANSWERS):
            await self._catch_up()

    async def _have_it_read(self) -> None:
        """Make the focused program read the map, by a key that types nothing.

        GTK reads a new map when it handles the next key. If that were the text's, and another map came before, the
        text would be read by the other one.
        """
        self._unread = False
        shift_key = self._keyboard.key_map.shift_key
        base, _, _ = self._state.held()
        if shift_key is None or base:
            return
        self._client.fake_input(X.KeyPress, shift_key)
        self._client.fake_input(X.KeyRelease, shift_key)
        await self._catch_up()

    def _parsed(self, raw: bytes) -> KeyMap:
        return parse_key_map(raw, [list(row) for row in self.display.get_modifier_mapping()])

    async def _catch_up(self) -> None:
        """Let the focused program handle what it was sent so far."""
        self.display.sync()
        if not await self._client.wait_for_focused_program(_CATCH_UP_S):
            await asyncio.sleep(_BLIND_PACE_S)

    # Events, in a grab

    def strike(self, strokes: Sequence[Stroke]) -> None:
        """Press and release keys, with the modifiers and the group that each needs; call it in a grab."""
        base, before, latched = self._state.held()
        shifts = self._shifts_down(base)
        for keycode in shifts:
            self._client.fake_input(X.KeyRelease, keycode)
        shift_key = self._keyboard.key_map.shift_key
        now = None if latched else before
        for stroke in strokes:
            shift = stroke.modifiers & SHIFT and shift_key
            needed = LockState(stroke.modifiers & ~SHIFT if shift else stroke.modifiers, stroke.group)
            if needed != now:
                self._state.lock(needed)
                now = needed
            if shift:
                self._client.fake_input(X.KeyPress, shift)
            self._client.fake_input(X.KeyPress, stroke.keycode)
            self._client.fake_input(X.KeyRelease, stroke.keycode)
            if shift:
                self._client.fake_input(X.KeyRelease, shift)
        if now != before:
            self._state.lock(before)
        for keycode in shifts:
            self._client.fake_input(X.KeyPress, keycode)

    def _hold(self, keysyms: Sequence[int], strokes: Sequence[Stroke]) -> None:
        keycodes = [stroke.keycode for stroke in strokes]
        needing = [number for number, stroke in enumerate(strokes) if stroke.modifiers & SHIFT]
        needed = 0
        for stroke in strokes:
            needed |= stroke.modifiers & ~SHIFT
        shift_key = self._keyboard.key_map.shift_key
        if needing and shift_key is None:
            needed |= SHIFT
        elif needing and shift_key is not None and not self._shift_within(keysyms):
            keycodes.insert(needing[0], shift_key)
        if not all(_changes_state(keysym) for keysym in keysyms):
            self._set_aside(LockState(needed, max(stroke.group for stroke in strokes)))
        self._chord = keycodes
        for keycode in keycodes:
            self._press(keycode, True)

    def _set_aside(self, needed: LockState) -> None:
        _, before, latched = self._state.held()
        if before != needed or latched:
            self._aside = before, needed
            self._state.lock(needed)

    def _shift_within(self, keysyms: Sequence[int]) -> bool:
        return any(keysym in (0xFFE1, 0xFFE2) for keysym in keysyms)

    def _press_alone(self, keysym: int, stroke: Stroke, down: bool) -> None:
        if down:
            self._single[keysym] = stroke.keycode
        before = None
        if not _changes_state(keysym):
            self._set_aside(LockState(stroke.modifiers & ~SHIFT, stroke.group))
            before, self._aside = self._aside, None
        self._press(stroke.keycode, down)
        if before is not None:
            self._state.lock(before[0])

    def _shifts_down(self, base: int) -> list[int]:
        """Keys that hold modifiers which choose other characters."""
        choosing = base & self._keyboard.key_map.choosing
        if not choosing:
            return []
        rows = [row for number, row in enumerate(self._keyboard.key_map.modifiers) if choosing >> number & 1]
        return [keycode for keycode in self._keys_down() if any(keycode in row for row in rows)]

    def _keys_down(self) -> list[int]:
        keys = self.display.query_keymap()
        return [8 * number + bit for number, byte in enumerate(keys) for bit in range(8) if byte >> bit & 1]


def _changes_state(keysym: int) -> bool:
    return any(keysym in keysyms for keysyms in _MODIFIERS)
