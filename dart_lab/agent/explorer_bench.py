"""The explorer against chance and breadth-first, at the same number of actions and resets, on real applications.

The rivals see the same screens, propose the same deeds and are counted alike; they only choose otherwise. A ratio
compares the mean numbers of distinct screens, averaged over applications; its interval is a bootstrap over seeds.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dart_gym_grounding_data.collector import task_named
from dart_gym_grounding_data.exploration_graph import Deed, Graph, Node
from dart_gym_grounding_data.explorer import PARTS, Explorer
from dart_gym_grounding_data.task_place import TaskPlace

from dart_lab.reporting.report import Aim, Report

APPLICATIONS = ("galculator", "eog", "file-roller")
RIVALS = ("random", "breadth")
_TRIES, _RESAMPLED = 12, 2000
Progress = Callable[[str], None]
Found = dict[tuple[str, str], list[int]]


@dataclass(slots=True)
class RandomExplorer(Explorer):
    """Any deed of the screen."""

    async def choose(self, here: Node) -> Deed | None:
        """By lot."""
        return self.rng.choice(list(here.deeds.values()))


@dataclass(slots=True)
class BreadthExplorer(Explorer):
    """The first deed that was not tried of the screen nearest to the start; on the way there, the next one."""

    unreachable: set[int] = field(default_factory=set)

    async def choose(self, here: Node) -> Deed | None:
        """Along known edges, or from the start where none lead there."""
        for goal in sorted(self.graph.nodes, key=lambda node: (node.depth, node.number)):
            left = [deed for key, deed in goal.deeds.items() if key not in goal.tried]
            if not left or goal.number in self.unreachable:
                continue
            if goal is here:
                return left[0]
            if path := path_between(self.graph, here.number, goal.number):
                if len(here.tried[path[0].key]) < _TRIES:
                    return path[0]
            elif here.number != 0 and path_between(self.graph, 0, goal.number) is not None:
                return None
            self.unreachable.add(goal.number)
        return self.rng.choice(list(here.deeds.values()))


def path_between(graph: Graph, start: int, goal: int) -> list[Deed] | None:
    """The fewest deeds that led from one node to another; None where none are known."""
    paths: dict[int, list[Deed]] = {start: []}
    queue = deque([start])
    while queue and goal not in paths:
        at = queue.popleft()
        for edges in graph.nodes[at].tried.values():
            if edges and (after := edges[-1].after) is not None and after not in paths:
                paths[after] = [*paths[at], edges[-1].deed]
                queue.append(after)
    return paths.get(goal)


async def screens_found(name: str, rival: str, steps: int, seed: int) -> int:
    """Distinct screens of one run; `rival`: explorer, random, breadth, or a part that the explorer does without."""
    place = TaskPlace(task_named(name))
    kinds = {"random": RandomExplorer, "breadth": BreadthExplorer}
    kind, without = kinds.get(rival, Explorer), frozenset((rival,)) & {*PARTS}
    try:
        return len((await kind(place, steps, seed, without).run()).nodes)
    finally:
        await place.close()


def ratio_of(found: Found, rival: str, seed: int = 0) -> tuple[float, float, float]:
    """Return the ratio of screens that the explorer and a rival found, with a 95 % interval. Pure."""
    names = sorted({name for name, way in found if way == rival})
    pairs = [(found[name, "explorer"], found[name, rival]) for name in names]

    def mean(draw: Callable[[Sequence[int]], Sequence[int]]) -> float:
        return sum(sum(draw(a)) / len(a) / (sum(draw(b)) / len(b)) for a, b in pairs) / len(pairs)

    rng = random.Random(seed)
    drawn = sorted(mean(lambda of: rng.choices(of, k=len(of))) for _ in range(_RESAMPLED))
    return mean(lambda of: of), drawn[_RESAMPLED // 40], drawn[-_RESAMPLED // 40]


def report_of(found: Found, steps: int) -> Report:
    """The ratios of what was found. Pure."""
    keys: dict[str, float] = {}
    for rival in dict.fromkeys(way for _, way in found if way != "explorer"):
        key = f"ground.explorer_vs_{rival}" if rival not in PARTS else f"ground.explorer_without.{rival}"
        keys[key], keys[f"{key}.low"], keys[f"{key}.high"] = ratio_of(found, rival)
    for (name, way), counts in found.items():
        keys[f"ground.screens.{name}.{way}"] = sum(counts) / len(counts)
    aims = {"ground.explorer_vs_random": Aim(1.5, at_most=False), "ground.explorer_vs_breadth": Aim(1.2, at_most=False)}
    return Report("explorer", keys, aims=aims, notes=[f"{steps} actions and resets in each run"])


def measure(
    names: Sequence[str], steps: int, seeds: int, parts: bool, progress: Progress, rivals: Sequence[str] = RIVALS
) -> Report:
    """Run all, one after the other."""
    found: Found = {}
    for name in names or APPLICATIONS:
        for way in ("explorer", *rivals, *(PARTS if parts else ())):
            counts = [asyncio.run(screens_found(name, way, steps, seed)) for seed in range(seeds)]
            found[name, way] = counts
            progress(f"{name}, {way}: {counts}")
    return report_of(found, steps)
