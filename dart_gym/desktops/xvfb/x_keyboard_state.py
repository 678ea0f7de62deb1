"""The keyboard's map, lock state and access features, by the XKB extension, which python-xlib does not know."""

import struct
from dataclasses import dataclass
from typing import Any

from Xlib.protocol import rq

from dart_gym.core.errors import DesktopError

_CORE_KEYBOARD = 0x100
_TYPES_AND_SYMS = 3
_ENABLED_AT = 48  # bytes into the content of a reply to GetControls
_ENABLED = 1 << 31  # what SetControls changes
FILTERS = 1 << 1 | 1 << 2 | 1 << 4
"""Controls that drop keys or turn them into something else: SlowKeys, BounceKeys, MouseKeys (X11/extensions/XKB.h)."""


@dataclass(frozen=True, slots=True)
class LockState:
    """Modifiers that are locked, as a mask, and the group that is."""

    modifiers: int = 0
    group: int = 0


class _Rest(rq.ValueField):
    """The rest of a reply as bytes (python3-xlib 0.15, which pyautogui brings, has no `rq.Binary`)."""

    structcode = None

    def parse_binary_value(self, data: bytes, display: Any, length: int | None, format: int) -> tuple[bytes, bytes]:
        return data, b""


class _UseExtension(rq.ReplyRequest):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(0), rq.RequestLength(), rq.Card16("major"), rq.Card16("minor"))
    _reply = rq.Struct(
        rq.ReplyCode(), rq.Card8("supported"), rq.Card16("sequence_number"), rq.ReplyLength(), rq.Pad(24)
    )


class _GetState(rq.ReplyRequest):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(4), rq.RequestLength(), rq.Card16("device"), rq.Pad(2))
    _reply = rq.Struct(
        rq.ReplyCode(),
        rq.Pad(1),
        rq.Card16("sequence_number"),
        rq.ReplyLength(),
        rq.Card8("modifiers"),
        rq.Card8("base_modifiers"),
        rq.Card8("latched_modifiers"),
        rq.Card8("locked_modifiers"),
        rq.Card8("group"),
        rq.Card8("locked_group"),
        rq.Pad(18),
    )


class _GetMap(rq.ReplyRequest):
    _request = rq.Struct(
        rq.Card8("opcode"), rq.Opcode(8), rq.RequestLength(), rq.Card16("device"), rq.Card16("full"), rq.Pad(20)
    )
    _reply = rq.Struct(rq.ReplyCode(), rq.Pad(1), rq.Card16("sequence_number"), rq.ReplyLength(), _Rest("content"))


class _GetControls(rq.ReplyRequest):
    _request = rq.Struct(rq.Card8("opcode"), rq.Opcode(6), rq.RequestLength(), rq.Card16("device"), rq.Pad(2))
    _reply = rq.Struct(rq.ReplyCode(), rq.Pad(1), rq.Card16("sequence_number"), rq.ReplyLength(), _Rest("content"))


class _SetControls(rq.Request):
    _layout = struct.Struct("=BBHH18xIII64x")

    def __init__(self, display: Any, opcode: int, affected: int, enabled: int) -> None:
        self._display, self._serial = display, None
        self._binary = self._layout.pack(opcode, 7, self._layout.size // 4, _CORE_KEYBOARD, affected, enabled, _ENABLED)
        display.send_request(self, False)


class _LatchLockState(rq.Request):
    _layout = struct.Struct("=BBHHBBBBBBxBh")

    def __init__(self, display: Any, opcode: int, state: LockState) -> None:
        self._display, self._serial = display, None
        self._binary = self._layout.pack(
            opcode, 5, self._layout.size // 4, _CORE_KEYBOARD, 0xFF, state.modifiers, 1, state.group, 0xFF, 0, 0, 0
        )
        display.send_request(self, False)


class XKeyboardState:
    """The core keyboard's map, locks and access features. Raises `DesktopError` where the X server has no XKB."""

    def __init__(self, display: Any) -> None:
        self._display = display.display
        found = display.query_extension("XKEYBOARD")
        if found is None or not found.present:
            raise DesktopError("the desktop's X server lacks the extension XKEYBOARD")
        self._opcode = found.major_opcode
        _UseExtension(display=self._display, opcode=self._opcode, major=1, minor=0)

    def read_map(self) -> bytes:
        """The reply to GetMap, for `key_map.parse_key_map`; equal bytes are equal maps."""
        reply = _GetMap(display=self._display, opcode=self._opcode, device=_CORE_KEYBOARD, full=_TYPES_AND_SYMS)
        content: bytes = reply.content
        return content

    def held(self) -> tuple[int, LockState, bool]:
        """Modifiers that keys hold, as a mask; what is locked; whether something is latched besides."""
        reply = _GetState(display=self._display, opcode=self._opcode, device=_CORE_KEYBOARD)
        locks = LockState(reply.locked_modifiers, reply.locked_group)
        return reply.base_modifiers, locks, bool(reply.latched_modifiers)

    def lock(self, state: LockState) -> None:
        """Lock these modifiers and this group, and nothing else; what was latched is not."""
        _LatchLockState(self._display, self._opcode, state)

    def filters(self) -> int:
        """Return the controls of `FILTERS` that are on, as a mask."""
        reply = _GetControls(display=self._display, opcode=self._opcode, device=_CORE_KEYBOARD)
        enabled: int = struct.unpack_from("=I", reply.content, _ENABLED_AT)[0]
        return enabled & FILTERS

    def switch_filters(self, enabled: int) -> None:
        """Switch these controls of `FILTERS` on and its others off."""
        _SetControls(self._display, self._opcode, FILTERS, enabled)
