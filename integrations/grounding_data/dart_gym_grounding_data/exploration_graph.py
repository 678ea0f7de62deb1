"""The graph that an exploration leaves: screens, what can be done on them, and where it led.

Invariant: screens that differ in numbers, clocks and carets alone are one node.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dart_gym_grounding_data.screen_elements import CLICKED, TYPED, Element, Screen, alike, without_counts

_LEAVING = re.compile(r"log ?out|sign ?out|shut ?down|power off|restart|reboot|suspend|hibernate|switch user", re.I)
_ROWS = frozenset(("table-cell", "list-item", "tree-item", "icon"))
ROWS, DEEDS = 8, 80


@dataclass(frozen=True, slots=True)
class Deed:
    """To "click" or to "type" into an element, or the "key" Escape, which has none."""

    kind: str
    element: Element | None = None

    @property
    def key(self) -> str:
        """The same for the same deed on another screen."""
        return f"{self.kind}|{self.element.key}" if self.element else self.kind

    @property
    def name(self) -> str:
        """The same for all elements of a role and name; what has no name is known by its number."""
        element = self.element
        return f"{self.kind}|{element.role}|{without_counts(element.name) or element.key}" if element else self.kind


@dataclass(frozen=True, slots=True)
class Edge:
    """What a deed led to: another node, or None where the way ended in `trouble`."""

    before: int
    deed: Deed
    after: int | None
    reward: float
    trouble: str = ""


@dataclass(slots=True)
class Node:
    """A screen that was reached, with all that can be done there; `depth`: the fewest deeds from the start."""

    number: int
    screen: Screen
    deeds: dict[str, Deed]
    picture: NDArray[np.int16]
    depth: int
    visits: int = 0
    tried: dict[str, list[Edge]] = field(default_factory=lambda: defaultdict(list))

    @property
    def title(self) -> str:
        """What is in front, in words."""
        within = Counter(element.within for element in self.screen.elements if element.front and element.within)
        return within.most_common(1)[0][0] if within else ", ".join(filter(None, self.screen.titles))


@dataclass(slots=True)
class Graph:
    """Nodes by number, 0 being the start, and edges in the order in which they were gone."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    _by_tree: dict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))

    def find(self, screen: Screen, depth: int) -> tuple[Node, bool]:
        """The node of a screen, and whether it is new."""
        picture, same, deeds = screen.picture(), self._by_tree[screen.tree_key], {d.key: d for d in deeds_on(screen)}
        for node in same:
            if alike(node.picture, picture):
                node.screen, node.deeds, node.depth = screen, deeds, min(node.depth, depth)  # it may have moved
                return node, False
        same.append(Node(len(self.nodes), screen, deeds, picture, depth))
        self.nodes.append(same[-1])
        return same[-1], True


def deeds_on(screen: Screen) -> Iterator[Deed]:
    """What the tree proposes: elements in front, few of a list's rows, nothing that would end a session. Pure."""
    rows: Counter[tuple[str, str]] = Counter()
    for element in screen.elements:
        if element.role in CLICKED | TYPED and element.front and element.enabled:
            rows[element.role, element.within] += 1
            many = element.role in _ROWS and rows[element.role, element.within] > ROWS
            if not many and not _LEAVING.search(element.name) and rows.total() <= DEEDS:
                yield Deed("type" if element.role in TYPED else "click", element)
    yield Deed("key")
