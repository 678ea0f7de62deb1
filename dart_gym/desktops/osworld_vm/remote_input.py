"""Carries out input events through XTEST: sent as a whole to a machine with OSWorld's server, and run by its Python.

It uses python-xlib, which pyautogui brings there, and the standard library. `python -c <this> '<events as JSON>'`; see
`dart_gym.desktops.input.input_events` for what they are. What is still down when one fails is released.
"""

import json
import sys
import time

CATCH_UP_S = 0.1  # programs look a keycode's meaning up when they handle its event
PACE_S = 0.004
REST_S = 0.1
SHIFT = 0xFFE1


def main(events):
    """Carry out all events."""
    from Xlib import display

    hands = Hands(display.Display())
    try:
        for name, *arguments in events:
            getattr(hands, name)(*arguments)
            hands.display.sync()
    except BaseException:
        hands.let_go()
        raise


class Hands:
    """Pointer and keyboard of a display."""

    def __init__(self, display):
        from Xlib import X

        self.x, self.display = X, display
        self.down, self.last_chord = {}, []
        info = display.display.info
        first, count = info.min_keycode, info.max_keycode - info.min_keycode + 1
        rows = display.get_keyboard_mapping(first, count)
        self.keycodes, self.spare = {}, []
        for keycode, row in enumerate(rows, first):
            if not any(row) and keycode > first:
                self.spare.append(keycode)
            for column in (1, 0):
                if column < len(row) and row[column]:
                    self.keycodes[row[column]] = (keycode, column == 1)

    def fake(self, kind, detail=0, x=0, y=0):
        """Send an event."""
        from Xlib.ext import xtest

        xtest.fake_input(self.display, kind, detail, x=x, y=y)

    def move(self, x, y):
        """Move the pointer."""
        self.fake(self.x.MotionNotify, 0, x, y)

    def button(self, number, down):
        """Press or release a button."""
        self.fake((self.x.ButtonRelease, self.x.ButtonPress)[down], number)
        self.note(("button", number), down)

    def key(self, keysym, down):
        """Press or release a key alone."""
        self.press(self.find([keysym])[keysym][0], down)

    def chord(self, keysyms, down):
        """Press keys in their order, with Shift before the first that needs it; or release them in reverse order."""
        if not down:
            for keycode in reversed(self.last_chord):
                self.press(keycode, False)
            return
        found, shift_key = self.find(keysyms), self.keycodes[SHIFT][0]
        keycodes = [found[keysym][0] for keysym in keysyms]
        needing = [i for i, keysym in enumerate(keysyms) if found[keysym][1]]
        if needing and shift_key not in keycodes:
            keycodes.insert(needing[0], shift_key)
        self.last_chord = keycodes
        for keycode in keycodes:
            self.press(keycode, True)

    def press(self, keycode, down):
        """Press or release a keycode."""
        self.fake((self.x.KeyRelease, self.x.KeyPress)[down], keycode)
        self.note(("key", keycode), down)

    def note(self, what, down):
        """Remember what is down."""
        if down:
            self.down[what] = True
        else:
            self.down.pop(what, None)

    def let_go(self):
        """Release everything."""
        for kind, detail in list(self.down):
            self.fake(self.x.KeyRelease if kind == "key" else self.x.ButtonRelease, detail)
        self.display.sync()

    def text(self, keysyms):
        """Strike keys, as many at a time as there are spare keycodes for what the keyboard lacks."""
        start = 0
        while start < len(keysyms):
            end, new = start, set()
            while end < len(keysyms):
                new |= {keysyms[end]} - self.keycodes.keys()
                if len(new) > len(self.spare):
                    break
                end += 1
            found = self.find(keysyms[start:end])
            for keysym in keysyms[start:end]:
                keycode, shift = found[keysym]
                shift_key = self.keycodes[SHIFT][0]
                if shift:
                    self.press(shift_key, True)
                self.press(keycode, True)
                self.press(keycode, False)
                if shift:
                    self.press(shift_key, False)
            start = end
            if start < len(keysyms):
                self.display.sync()
                time.sleep(CATCH_UP_S)

    def find(self, keysyms):
        """Keycode and shift of each keysym; spare keycodes get the meaning of those that the keyboard lacks."""
        lacking = [keysym for keysym in dict.fromkeys(keysyms) if keysym not in self.keycodes]
        found = {keysym: self.keycodes[keysym] for keysym in keysyms if keysym in self.keycodes}
        for keycode, keysym in zip(self.spare, lacking, strict=False):
            self.display.change_keyboard_mapping(keycode, [(keysym, keysym)])
            found[keysym] = (keycode, False)
        if lacking:
            self.display.sync()
            time.sleep(CATCH_UP_S)
        return found

    def pace(self):
        """Wait a moment."""
        time.sleep(PACE_S)

    def rest(self):
        """Wait until programs have kept up."""
        time.sleep(REST_S)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    print("done")
