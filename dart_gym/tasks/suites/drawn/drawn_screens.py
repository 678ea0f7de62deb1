"""What a drawn program is made of: pages of widgets, the values that they change, and the way to a goal. Pure.

Invariants:
    - An outcome is a function of the instance and the actions: no clock, no chance, no process.
    - From every state there is a way to the goal, but from one that has ended: `next_step` finds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dart_gym.desktops.fake_desktop import Button

Value = str | int
ROW, QUARTER, GAP = 28, 42, 2
"""Height of a row, width of a quarter of the screen and space around a widget, in pixels."""
WHITE = (255, 255, 255)
GREY = (222, 222, 222)
GREEN = (150, 215, 150)
BLUE = (170, 195, 250)
YELLOW = (250, 240, 160)


@dataclass(frozen=True, slots=True)
class Widget:
    """One widget of a page.

    Attributes:
        kind: text (only shown), show (the value of `name`), field (is typed into), check (toggles 1), set (sets `name`
            to `value`, or to "" where it is that already), add (adds `value`), append (puts `value` at the end), go
            (leads to the page `value`), submit.
        label: what stands on it.
        row: place from the top, in rows.
        left: place from the left, in quarters of the screen.
        width: in quarters of the screen.
        name: the value that it changes or shows.
        value: see `kind`.
    """

    kind: Literal["text", "show", "field", "check", "set", "add", "append", "go", "submit"]
    label: str
    row: int
    left: int = 0
    width: int = 4
    name: str = ""
    value: Value = ""

    def drawn(self, state: State, number: int) -> Button:
        """How it looks in a state; `number` tells it from the others."""
        value = state.values.get(self.name, "")
        label = self.label
        color = GREY
        if self.kind in ("text", "show", "field"):
            label, color = (str(value), WHITE) if self.kind != "text" else (label, WHITE)
            color = YELLOW if self.kind == "field" and state.focus == self.name else color
        elif self.kind == "check":
            label, color = f"[{'x' if value else ' '}] {label}", GREEN if value else WHITE
        elif self.kind == "set" and self.value:
            label, color = f"({'o' if value == self.value else ' '}) {label}", GREEN if value == self.value else WHITE
        elif self.kind in ("go", "submit"):
            color = BLUE
        border = None if self.kind in ("text", "show") else "black"
        x, y = self.left * QUARTER + GAP, self.row * ROW + GAP
        return Button(label, x, y, self.width * QUARTER - 2 * GAP, ROW - 2 * GAP, color, border, str(number))


@dataclass(frozen=True, slots=True)
class Instance:
    """A program, and what is asked of its user.

    Attributes:
        instruction: in words.
        pages: widgets by the name of the page; the first page is shown first.
        start: the values at the beginning.
        goal: the values that must be there on submission.
    """

    instruction: str
    pages: Mapping[str, tuple[Widget, ...]]
    start: Mapping[str, Value]
    goal: Mapping[str, Value]

    @property
    def key(self) -> str:
        """Return what is asked, and from which values on: instances with equal keys differ by their layout at most."""
        return f"{self.instruction} {sorted(self.start.items())}"

    def begin(self) -> State:
        """The state before the first action."""
        return State(next(iter(self.pages)), self.start)


@dataclass(frozen=True, slots=True)
class State:
    """A program in use.

    Attributes:
        page: the one that is shown.
        values: by name.
        focus: name of the field that is typed into; "" for none.
        fresh: whether its text is selected, so that typing replaces it.
        ended: whether it was submitted.
    """

    page: str
    values: Mapping[str, Value]
    focus: str = ""
    fresh: bool = False
    ended: bool = False

    def clicked(self, widget: Widget) -> State:
        """After a click."""
        old, name = self.values.get(widget.name, ""), widget.name
        match widget.kind:
            case "field":
                return replace(self, focus=name, fresh=True)
            case "go":
                return replace(self, page=str(widget.value), focus="")
            case "submit":
                return replace(self, ended=True)
            case "check":
                new: Value = "" if old else 1
            case "set":
                new = "" if old == widget.value else widget.value
            case "add":
                new = int(old) + int(widget.value)
            case "append":
                new = f"{old}{widget.value}"
            case _:
                return self
        return replace(self, values={**self.values, name: new}, focus="")

    def typed(self, text: str) -> State:
        """After text was typed."""
        if not self.focus:
            return self
        old = "" if self.fresh else self.values.get(self.focus, "")
        return replace(self, values={**self.values, self.focus: f"{old}{text}"}, fresh=False)


def solved(instance: Instance, state: State) -> bool:
    """Return whether every value is as asked."""
    return all(state.values.get(name, "") == value for name, value in instance.goal.items())


def next_step(instance: Instance, state: State) -> Widget | str:
    """The next action of a perfect user: the widget to be clicked, or the text to be typed."""
    if state.focus and state.fresh and state.values.get(state.focus, "") != instance.goal.get(state.focus, ""):
        return str(instance.goal[state.focus])
    ways: deque[tuple[str, Widget | None]] = deque([(state.page, None)])
    seen = {state.page}
    while ways:
        page, first = ways.popleft()
        for widget in instance.pages[page]:
            if _helps(instance, state, widget):
                return first or widget
        for widget in instance.pages[page]:
            if widget.kind == "go" and widget.value not in seen:
                seen.add(str(widget.value))
                ways.append((str(widget.value), first or widget))
    raise ValueError(f"there is no way to {dict(instance.goal)}")


def _helps(instance: Instance, state: State, widget: Widget) -> bool:
    """Return whether a click on a widget brings the goal nearer."""
    if widget.kind == "submit":
        return solved(instance, state)
    if widget.name not in instance.goal:
        return False
    old, goal = state.values.get(widget.name, ""), instance.goal[widget.name]
    if old == goal:
        return False
    match widget.kind:
        case "field" | "check":
            return True
        case "set":
            unset = widget.value == old if goal == "" else widget.value == "" and not str(goal).startswith(str(old))
            return unset or widget.value == goal
        case "add":
            return (int(goal) > int(old)) == (int(widget.value) > 0)
        case "append":
            return str(goal).startswith(f"{old}{widget.value}")
    return False
