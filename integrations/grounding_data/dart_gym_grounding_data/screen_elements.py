"""What can be seen and clicked on a screen: elements of the accessibility tree, clipped to what windows leave visible.

Two screens are one state when their front layers (an open menu, a dialog, else the window) hold the same elements and
look alike: numbers, clocks, carets and typed text make no difference. Pure.

Invariant: a box lies on the screen and its middle on its element's window, as the X server stacks them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element as Node
from xml.etree.ElementTree import fromstring

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dart_agent.grounding.candidate import Box

CLICKED = frozenset(
    "push-button toggle-button radio-button check-box menu menu-item check-menu-item radio-menu-item page-tab link "
    "list-item table-cell tree-item combo-box icon button switch table-column-header column-header".split()
)
TYPED = frozenset(("text", "entry", "spin-button", "password-text"))
_CLIPPING = frozenset(("frame", "dialog", "window", "scroll-pane", "viewport", "document-web", "alert", "file-chooser"))
_SPACE = "{https://accessibility.ubuntu.example.org/ns/%s}"
_CORNER, _SIZE, _STATE = _SPACE % "component" + "screencoord", _SPACE % "component" + "size", _SPACE % "state"
_NUMBER = re.compile(r"-?\d{1,9}")
_COUNTS = re.compile(r"\d+(?:[:.,/-]\d+)*(?:\s*[ap]m)?", re.IGNORECASE)
SMALLEST, MOST = 6, 2000  # pixels of a side, elements of a screen
GRID, LEVELS, CHANGED = (24, 16), 20, 0.1


@dataclass(frozen=True, slots=True)
class Element:
    """Something in a visible box. `within`: its window or menu; `front`: of the top layer; `number`: of namesakes."""

    role: str
    name: str
    box: Box
    within: str = ""
    enabled: bool = True
    front: bool = True
    number: int = 0

    @property
    def middle(self) -> tuple[int, int]:
        """Where it is clicked."""
        return int((self.box.left + self.box.right) / 2), int((self.box.top + self.box.bottom) / 2)

    @property
    def key(self) -> str:
        """The same for the same element of another screen, wherever it is."""
        return f"{self.role}|{without_counts(self.name)}|{self.number}"


@dataclass(frozen=True, slots=True)
class Screen:
    """What is shown: an (H, W, 3) uint8 image, its elements, titles of windows, and why it cannot be gone on from."""

    image: NDArray[np.uint8]
    elements: tuple[Element, ...] = ()
    titles: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def tree_key(self) -> str:
        """Of the elements in front, numbers and what can be typed aside."""
        front = sorted(element.key for element in self.elements if element.front and element.role not in TYPED)
        return "\n".join(front or map(without_counts, self.titles))

    def picture(self) -> NDArray[np.int16]:
        """Mean brightness of 16 rows and 24 columns of cells of the front layer, or of the screen without elements."""
        image, boxes = Image.fromarray(self.image).convert("L"), [e.box for e in self.elements if e.front]
        if boxes:
            left, top = min(box.left for box in boxes), min(box.top for box in boxes)
            right, bottom = max(box.right for box in boxes), max(box.bottom for box in boxes)
            image = image.crop((int(left), int(top), int(right), int(bottom)))
        return np.asarray(image.resize(GRID, Image.Resampling.BOX), np.int16)


def without_counts(name: str) -> str:
    """A name with numbers, times and dates masked, and without a program's mark for what was changed."""
    return _COUNTS.sub("#", name).strip("*• ")


def alike(one: NDArray[np.int16], other: NDArray[np.int16]) -> bool:
    """Whether two pictures of `Screen.picture` differ in few cells only, as by a caret, a clock or a chosen row."""
    return bool((np.abs(one - other) > LEVELS).mean() <= CHANGED)


def elements_of(
    xml: str, stack: Sequence[Sequence[int]], size: tuple[int, int]
) -> tuple[tuple[Element, ...], Counter[str]]:
    """The elements of OSWorld's accessibility tree, and how many were left out, by the reason.

    `stack`: left, top, width, height and whether the window manager passes it over, of each window, top first; `size`
    is the (width, height) of the screen in pixels.
    """
    windows = [(Box(left, top, left + width, top + height), bool(free)) for left, top, width, height, free in stack]
    found: list[tuple[Node, Box, str, int, int]] = []  # with its window, and the number of its modal group
    left_out: Counter[str] = Counter()
    modals = 0
    for top in (top for application in fromstring(xml) for top in application):
        if (own := _box(top)) is None:
            continue
        shares = [_overlap(own, box).area / max(1.0, own.area, box.area) for box, _ in windows]
        number = shares.index(max(shares)) if shares and max(shares) > 0.5 else 0
        todo = [(top, Box(0, 0, *size), top.get("name") or "", number, 0, False)]
        while todo:  # without recursion, for a tree may be deep
            node, clip, within, window, modal, menu = todo.pop()
            role, box = node.tag, _box(node)
            if node.get(_STATE + "modal") == "true":
                modals = modal = modals + 1
            if box is not None and role in CLICKED | TYPED and (role != "menu" or node.get("name")):
                seen = _visible(_overlap(box, clip), window, menu, windows)
                if isinstance(seen, str):
                    left_out[seen] += 1
                else:
                    found.append((node, seen[0], within, seen[1], modal))
            clip = _overlap(clip, box) if box is not None and role in _CLIPPING else clip
            if role in ("menu", "combo-box", "popup-menu") or (role == "menu-item" and len(node)):
                clip, within, menu = Box(0, 0, *size), node.get("name") or within, True
            todo += [(child, clip, within, window, modal, menu) for child in reversed(node)]
    if len(found) > MOST:
        left_out[f"beyond {MOST} on a screen"] += len(found) - MOST
    return _elements(found[:MOST], [free for _, free in windows]), left_out


def _elements(found: list[tuple[Node, Box, str, int, int]], free: list[bool]) -> tuple[Element, ...]:
    """With which of them are in front: those of a menu, else of the last modal group of the first window."""
    first = min((window for *_, window, _ in found), default=0)
    modal = max((modal for *_, window, modal in found if window == first), default=0)
    popup = min((window for *_, window, _ in found if free and free[window]), default=None)
    same: Counter[tuple[str, str, bool]] = Counter()
    elements = []
    for node, box, within, window, group in found:
        front = window == popup if popup is not None else (window, group) == (first, modal)
        name, enabled = " ".join((node.get("name") or "").split()), node.get(_STATE + "enabled") == "true"
        kind = node.tag, without_counts(name), front
        elements.append(Element(node.tag, name, box, within, enabled, front, same[kind]))
        same[kind] += 1
    return tuple(elements)


def _visible(box: Box, window: int, menu: bool, windows: list[tuple[Box, bool]]) -> tuple[Box, int] | str:
    """What windows above leave of a box, and its window, which a menu has of its own; or why nothing is seen."""
    if menu:
        x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
        window = next((n for n, (other, free) in enumerate(windows) if free and other.contains(x, y)), -1)
        if window < 0:
            return "in a closed menu"
    for above, _ in windows[:window]:
        hidden = _overlap(box, above)
        if hidden.area:  # the largest rectangle that is left
            beside = Box(box.left, box.top, hidden.left, box.bottom), Box(hidden.right, box.top, box.right, box.bottom)
            over = Box(box.left, box.top, box.right, hidden.top), Box(box.left, hidden.bottom, box.right, box.bottom)
            box = max(*beside, *over, key=lambda part: part.area)
    tiny = min(box.right - box.left, box.bottom - box.top) < SMALLEST
    return "without an area that can be seen" if tiny else (box, window)


def _box(node: Node) -> Box | None:
    """Where an element is on the screen; None where it does not say."""
    corner, size = (_NUMBER.findall(node.get(name) or "") for name in (_CORNER, _SIZE))
    if len(corner) != 2 or len(size) != 2:
        return None
    left, top, width, height = map(int, (*corner, *size))
    return Box(left, top, left + max(0, width), top + max(0, height))


def _overlap(one: Box, other: Box) -> Box:
    left, top = max(one.left, other.left), max(one.top, other.top)
    return Box(left, top, max(left, min(one.right, other.right)), max(top, min(one.bottom, other.bottom)))
