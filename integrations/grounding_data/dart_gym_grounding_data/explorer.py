"""An explorer of applications, after GUI-Bee (arXiv 2501.13896): a graph of screens, and a Q-value for every deed.

The paper's equations were not at hand; these are this project's own. A deed's reward is the novelty of what it shows (a
screen never seen) and its usefulness (elements never seen), less than nothing where nothing changes or the way ends.
Rewards to come are backed up along the graph. A deed that was not tried is judged in the context of what similar ones
did, beside its proposal, with a bonus for uncertainty (UCB). To begin anew is a deed like others: it costs a step.
"""

import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dart_gym.core.errors import ConfigurationError, DesktopError
from dart_gym_grounding_data.exploration_graph import Deed, Edge, Graph, Node
from dart_gym_grounding_data.screen_elements import TYPED, Screen

PARTS = ("novelty", "usefulness", "proposals", "memory", "backup", "ucb", "traps")
NOTHING, TRAP, STEP, RESET, NOVEL, USEFUL = -0.3, -1.0, 0.05, 0.15, 0.6, 0.4
_MANY, _PAST, _SWEEPS = 10, 3, 12  # new elements of the most useful screen; outcomes that count; rounds of backing up
_SHARES = (3.0, 0.5, 0.25)  # how much what deeds of the same name, role and window, and role did counts
_PRIOR = {"menu": 0.9, "page-tab": 0.8, "combo-box": 0.5, "link": 0.7, "push-button": 0.5, "button": 0.5,
          "toggle-button": 0.4, "check-menu-item": 0.4}  # fmt: skip
_ENDS = frozenset(("close", "quit", "exit", "cancel", "ok", "close window", "minimize", "close tab"))


class Place(Protocol):
    """What is explored. Both answer with a screen, whose `trouble` says why one cannot go on from it."""

    async def reset(self) -> Screen:
        """Begin anew. Raises `DesktopError`, `TaskError`."""

    async def act(self, deed: Deed) -> Screen:
        """Do something."""


class Proposer(Protocol):
    """A policy that says what is worth doing."""

    async def propose(self, node: Node, told: Mapping[str, str]) -> Mapping[str, float]:
        """A worth from 0 to 1 by the deed's key; `told`: what similar deeds did, by the deed's key."""


class TreeProposer:
    """A policy without a model: menus, tabs and what ends in dots lead on; what ends something hardly does."""

    async def propose(self, node: Node, told: Mapping[str, str]) -> Mapping[str, float]:
        """By role and name."""
        return {key: _prior(deed) for key, deed in node.deeds.items()}


def _prior(deed: Deed) -> float:
    if deed.element is None or deed.element.role in TYPED:
        return 0.15
    if deed.element.name.lower() in _ENDS:
        return 0.1
    return 0.85 if deed.element.name.endswith(("…", "...")) else _PRIOR.get(deed.element.role, 0.2)


@dataclass(slots=True)
class Explorer:
    """Explores a place for `steps` deeds and resets; deterministic by `seed` as far as the place is.

    `left_out`: which of PARTS are switched off. `arrived` is called on each new screen, and answers with another one
    where it has changed the place. `found`: the number of screens after each step.
    """

    place: Place
    steps: int
    seed: int = 0
    left_out: frozenset[str] = frozenset()
    proposer: Proposer = field(default_factory=TreeProposer)
    arrived: Callable[[Node], Awaitable[Screen | None]] | None = None
    discount: float = 0.85
    ucb: float = 0.3
    graph: Graph = field(default_factory=Graph)
    found: list[int] = field(default_factory=list)
    resets: int = 0
    rng: random.Random = field(init=False)
    _worth: dict[int, Mapping[str, float]] = field(default_factory=dict)
    _memory: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if unknown := sorted(self.left_out - {*PARTS}):
            raise ConfigurationError(f"the explorer has no part {unknown[0]!r}; choose {', '.join(PARTS)}")
        self.rng = random.Random(self.seed)
        self.discount *= "backup" not in self.left_out
        self.ucb *= "ucb" not in self.left_out

    async def run(self) -> Graph:
        """Explore to the end of the steps. Raises `DesktopError`, `TaskError`: the place cannot be begun."""
        here = await self._begin()
        while len(self.found) < self.steps:
            deed = None if here is None else await self.choose(here)
            if here is None or deed is None:
                self.resets += 1
                here = await self._begin()
            else:
                here = await self._do(here, deed)
            self.found.append(len(self.graph.nodes))
        return self.graph

    async def _begin(self) -> Node | None:
        screen = await self.place.reset()
        if screen.trouble:
            raise DesktopError(f"there is nothing to explore: {screen.trouble}")
        return (await self._arrive(screen, 0))[0]

    async def _arrive(self, screen: Screen, depth: int) -> tuple[Node | None, float]:
        """The node of a screen, None where looking at it led off it, and how novel and useful it was."""
        node, new = self.graph.find(screen, depth)
        node.visits += 1
        names = {f"{element.role}|{element.name}" for element in screen.elements if element.name}
        useful = min(1.0, len(names - self._seen) / _MANY)
        self._seen |= names
        if new and "proposals" not in self.left_out:
            past = {key: self._memory.get(deed.name, []) for key, deed in node.deeds.items()}
            told = {key: f"done before, worth {sum(of) / len(of):.2f}" for key, of in past.items() if of}
            self._worth[node.number] = await self.proposer.propose(node, told)
        reward = NOVEL * (new and "novelty" not in self.left_out) + USEFUL * useful * (
            "usefulness" not in self.left_out
        )
        if new and self.arrived and (changed := await self.arrived(node)) is not None:
            return (None if changed.trouble else self.graph.find(changed, depth)[0]), reward
        return node, reward

    async def _do(self, here: Node, deed: Deed) -> Node | None:
        screen = await self.place.act(deed)
        node: Node | None = None
        reward = TRAP * ("traps" not in self.left_out)
        if not screen.trouble:
            node, reward = await self._arrive(screen, here.depth + 1)
            reward += NOTHING * (node is here)
        edge = Edge(here.number, deed, None if node is None else node.number, reward, screen.trouble)
        self.graph.edges.append(edge)
        here.tried[deed.key].append(edge)
        for feature in _features(deed):
            self._memory[feature].append(reward)
        return node

    async def choose(self, here: Node) -> Deed | None:
        """The deed of the highest value, ties by lot; None, to begin anew, where the start has more to offer."""
        values = self._values()
        worth = {key: self._value(here, key, values) for key in here.deeds}
        best = max(worth.values())
        if here.number and self.discount * values[0] - RESET > best:
            return None
        return here.deeds[self.rng.choice([key for key, value in worth.items() if value >= best - 1e-9])]

    def _values(self) -> list[float]:
        """What each node promises: its best deed, backed up along what is known."""
        nodes = self.graph.nodes
        values = [
            max((self._estimate(node, key) for key in node.deeds if key not in node.tried), default=TRAP)
            for node in nodes
        ]
        for _ in range(_SWEEPS if self.discount else 0):
            for node in nodes:
                known = (self._value(node, key, values) for key in node.tried)
                values[node.number] = max(values[node.number], *known, TRAP)
        return values

    def _value(self, node: Node, key: str, values: list[float]) -> float:
        """Q: of a tried deed what its outcomes promise on average, of another one its estimate."""
        if not (edges := node.tried.get(key)):
            back = self.discount * values[0] - STEP if key == "key" and node.number else TRAP  # Escape leads back
            return max(self._estimate(node, key), back)
        end = TRAP * ("traps" not in self.left_out)
        past = [end if edge.after is None else self.discount * values[edge.after] for edge in edges[-_PAST:]]
        stuck = any(edge.after == node.number for edge in edges)
        return sum(past) / len(past) - STEP * len(edges) + NOTHING * stuck

    def _estimate(self, node: Node, key: str) -> float:
        """Of a deed that was not tried here: its proposal, what similar ones did, and a bonus for not knowing."""
        deed, weight, total = node.deeds[key], 1.0, self._worth.get(node.number, {}).get(key, 0.5)
        for feature, share in zip(_features(deed), _SHARES, strict=True):
            if (past := self._memory.get(feature)) and "memory" not in self.left_out:
                mean, count = sum(past) / len(past), share * min(_PAST, len(past))
                total += count * (min(mean, STEP) if feature == deed.name else mean)  # once new is not new again
                weight += count
        times = next((len(past) for feature in _features(deed) if (past := self._memory.get(feature))), 0)
        return total / weight + self.ucb * math.sqrt(math.log(1 + node.visits) / (1 + times))


def _features(deed: Deed) -> tuple[str, str, str]:
    """What a deed has in common with others: its name, its role and window, its role."""
    role, within = (deed.element.role, deed.element.within) if deed.element else ("", "")
    return deed.name, f"{deed.kind}|{role}|in {within}", f"{deed.kind}|{role}"
