"""The collector: walks applications and leaves sets for grounders in ScreenSpot's layout, split by application.

The bundled applications of Debian (`assets/applications.json`, tasks in OSWorld's format) are those of training and
novel ones, which no training should see; a task of any suite, or a task's file, is walked alike.

Invariant: what cannot be walked, or not to the end, is named with the reason, and the walk goes on with the next.
"""

import functools
import importlib.resources
import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dart_agent.grounding.screenspot import GroundingItem, write_screenspot
from dart_gym.core.errors import DartGymError
from dart_gym.tasks.catalog.registry import get_task
from dart_gym.tasks.catalog.task import Task
from dart_gym_grounding_data.exploration_graph import Node
from dart_gym_grounding_data.explorer import Explorer
from dart_gym_grounding_data.pairs import Pairs
from dart_gym_grounding_data.screen_elements import Element, Screen
from dart_gym_grounding_data.task_place import TaskPlace

Check = Callable[[TaskPlace, Node], Awaitable[Collection[Element]]]


@functools.cache
def bundled() -> dict[str, Task]:
    """The tasks that begin the bundled applications, by name; `raw["dart"]["novel"]` marks the novel ones."""
    text = importlib.resources.files(__package__).joinpath("assets/applications.json").read_text(encoding="utf-8")
    return {raw["id"]: get_task(raw) for raw in json.loads(text)}


def task_named(name: str) -> Task:
    """A bundled application's task, or one by its id or file. Raises `UnknownTaskError`, `TaskError`."""
    return bundled().get(name) or get_task(name)


@dataclass(slots=True)
class Collected:
    """Items of training's and of novel applications, what went wrong, and a line about each application.

    `reading_s` and `beginning_s` are processor time as `TaskPlace` counts it.
    """

    train: list[GroundingItem] = field(default_factory=list)
    novel: list[GroundingItem] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    reading_s: float = 0.0
    beginning_s: float = 0.0

    def write(self, directory: Path) -> None:
        """Write `train` and `novel` below a directory, those that have items."""
        for name, items in (("train", self.train), ("novel", self.novel)):
            if items:
                write_screenspot(directory / name, items)


async def collect(tasks: Iterable[Task], *, steps: int, seed: int = 0, check: Check | None = None) -> Collected:
    """Explore each task's start for so many steps. `check` may press what a screen has, and says which are wrong."""
    found = Collected()
    for task in tasks:
        name = task.id.removeprefix("osworld/").replace("/", "-")
        place, pairs = TaskPlace(task), Pairs(name)

        async def take(node: Node, place: TaskPlace = place, pairs: Pairs = pairs) -> Screen | None:
            pairs.add(node.number, node.screen, await check(place, node) if check else ())
            return await place.look() if check else None

        explorer = Explorer(place, steps, seed, arrived=take)
        try:
            await explorer.run()
        except (DartGymError, OSError) as error:
            found.problems.append(f"{name}: {error}".splitlines()[0])
        finally:
            await place.close()
        found.reading_s += place.reading_s
        found.beginning_s += place.beginning_s
        pairs.add_effects(explorer.graph)
        nodes = explorer.graph.nodes
        if empty := sum(not node.screen.elements for node in nodes):
            found.problems.append(f"{name}: {empty} screens tell of no element (no accessibility)")
        found.problems += [f"{name}: {e.deed.name}: {e.trouble}" for e in explorer.graph.edges if e.trouble]
        (found.novel if task.raw.get("dart", {}).get("novel") else found.train).extend(pairs.items)
        left = ", ".join(f"{count} {reason}" for reason, count in (pairs.left_out + place.left_out).items())
        found.lines.append(f"{name}: {len(pairs.items)} pairs of {len(nodes)} screens; left out: {left or 'none'}")
    return found
