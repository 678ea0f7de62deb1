"""Pairs for grounders from screens whose elements are known: several phrasings of each, near-duplicates left out.

Pure. A phrase that fits several elements of a screen means any of them, so it has several boxes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from dart_agent.grounding.screenspot import GroundingItem
from dart_gym_grounding_data.exploration_graph import Graph
from dart_gym_grounding_data.screen_elements import TYPED, Element, Screen

_WORDS = {
    "menu": ("menu", "open the {} menu"), "menu-item": ("menu item", "choose {}"), "page-tab": ("tab", "go to {}"),
    "check-box": ("check box", "tick or untick {}"), "radio-button": ("option", "choose the option {}"),
    "link": ("link", "follow {}"), "combo-box": ("list", "open the list {}"), "table-cell": ("row", "choose {}"),
    "list-item": ("row", "choose {}"), "icon": ("icon", "open {}"), "check-menu-item": ("menu item", "switch {}"),
    "radio-menu-item": ("menu item", "choose {}"), "table-column-header": ("column heading", "sort by {}"),
    **dict.fromkeys(TYPED, ("text field", "type into {}")),
}  # fmt: skip
LONGEST, FLAT = 60, 8  # characters of a name; levels of brightness that differ where something is drawn
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")


def phrases(element: Element, size: tuple[int, int]) -> list[str]:
    """What a user may call an element of a screen of (width, height); none where its name is no words."""
    name = element.name.rstrip(":")
    if not name or len(name) > LONGEST or name.endswith("-symbolic"):
        return []
    word, order = _WORDS.get(element.role, ("button", "press {}"))
    x, y = element.middle
    row, column = _ROWS[min(2, 3 * y // size[1])], _COLUMNS[min(2, 3 * x // size[0])]
    return [f'the {word} "{name}"', order.format(name), f"{name}, {row} {column} of the screen"]


@dataclass(slots=True)
class Pairs:
    """Pairs of one application, taken in screen by screen; `left_out` is counted by the reason."""

    application: str
    items: list[GroundingItem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, int, int, bytes]] = field(default_factory=set)

    def add(self, number: int, screen: Screen, wrong: Collection[Element] = ()) -> None:
        """Take in a screen by its number, without elements that proved wrong."""
        meant: dict[str, list[Element]] = defaultdict(list)
        for element in screen.elements:
            for phrase in phrases(element, (screen.image.shape[1], screen.image.shape[0])):
                meant[phrase].append(element)
        for phrase, elements in meant.items():
            if not any(element in wrong for element in elements):
                self._add(number, phrase, elements, screen)

    def add_effects(self, graph: Graph) -> None:
        """What only this application's behaviour tells: where a window or menu is opened."""
        for edge in graph.edges:
            if edge.after and edge.deed.kind == "click" and edge.deed.element:
                before, title = graph.nodes[edge.before], graph.nodes[edge.after].title
                same = [e for e in before.screen.elements if e.front and e.key == edge.deed.element.key]
                if same and title and title != before.title:
                    self._add(before.number, f'where "{title[:LONGEST]}" is opened', same, before.screen)

    def _add(self, number: int, phrase: str, elements: list[Element], screen: Screen) -> None:
        box, (height, width) = elements[0].box, screen.image.shape[:2]
        crop = screen.image[int(box.top) : int(box.bottom), int(box.left) : int(box.right)]
        if crop.size == 0 or np.ptp(crop) < FLAT:
            self.left_out["with nothing drawn"] += 1
            return
        small = np.asarray(Image.fromarray(crop).convert("L").resize((8, 8)))
        wide, high = box.right - box.left, box.bottom - box.top
        key = phrase, int(wide) // 8, int(high) // 8, np.packbits(small > small.mean()).tobytes()
        if key in self._seen:
            self.left_out["seen before"] += 1
            return
        self._seen.add(key)
        kind = "icon" if wide < 1.4 * high and wide <= LONGEST and len(elements[0].name) > 3 else "text"
        boxes, name = tuple(element.box for element in elements), f"{self.application}/{number}"
        size = width, height
        self.items.append(GroundingItem(name, phrase, boxes, screen.image, size, kind, self.application, "linux"))
