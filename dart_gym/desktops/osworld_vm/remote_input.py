"""Carries out strokes through XTEST: sent as a whole to a machine with OSWorld's server, and run by its Python.

It uses python-xlib, which pyautogui brings there, and the standard library. `python -c <this> '<strokes as JSON>'`; see
`osworld_strokes.py` for what they are. Keys and buttons that are still down when a stroke fails are released.
"""

import json
import sys
import time

CATCH_UP_S = 0.1  # programs look a keycode's meaning up when they handle its event


def main(strokes):
    """Carry out all strokes."""
    from Xlib import display

    hands = Hands(display.Display())
    try:
        for name, *arguments in strokes:
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
        self.down = {}
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
        kinds = (self.x.ButtonRelease, self.x.ButtonPress)
        self.fake(kinds[down], number)
        self.note(("button", number), down)

    def key(self, keysym, down):
        """Press or release a key, with Shift where it needs that."""
        keycode, shift = self.find([keysym])[keysym]
        if shift and down:
            self.stroke(self.find([0xFFE1])[0xFFE1][0], True)
        self.stroke(keycode, down)
        if shift and not down:
            self.stroke(self.find([0xFFE1])[0xFFE1][0], False)

    def stroke(self, keycode, down):
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
                shift_key = self.keycodes[0xFFE1][0]
                if shift:
                    self.stroke(shift_key, True)
                self.stroke(keycode, True)
                self.stroke(keycode, False)
                if shift:
                    self.stroke(shift_key, False)
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

    def pause(self, seconds):
        """Wait, with everything sent before."""
        self.display.sync()
        time.sleep(seconds)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    print("done")
