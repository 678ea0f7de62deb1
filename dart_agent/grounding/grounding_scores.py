"""How often a grounder is right, by application, platform, kind and size of the element, with 95 % intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dart_agent.grounding.candidate import Candidate, Grounder, Query
from dart_agent.grounding.screenspot import GroundingItem
from dart_gym.utils.rates import wilson_interval


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Items with a `value` of a `group`, such as kind, and how often the first or any candidate lies in a box.

    `low` and `high` are the ends of Wilson's 95 % interval of the first candidates' rate.
    """

    group: str
    value: str
    items: int
    hits: int
    hits_of_k: int
    rate: float
    low: float
    high: float


def size_of(item: GroundingItem) -> str:
    """Small, medium or large: its smallest box covers less than 0.1 %, less than 1 % or more of the screen."""
    share = min(box.area for box in item.boxes) / (item.screen[0] * item.screen[1])
    return "small" if share < 0.001 else "medium" if share < 0.01 else "large"


_GROUPS: dict[str, Callable[[GroundingItem], str]] = {
    "all": lambda item: "",
    "application": lambda item: item.application,
    "platform": lambda item: item.platform,
    "kind": lambda item: item.kind,
    "size": size_of,
}


def accuracies(answers: Sequence[tuple[GroundingItem, Sequence[Candidate]]]) -> list[Accuracy]:
    """The accuracy on all items first, then of every group. Pure."""
    found = []
    for group, of in _GROUPS.items():
        for value in sorted({of(item) for item, _ in answers}):
            chosen = [(item.boxes, places) for item, places in answers if of(item) == value]
            hits = [[any(box.contains(at.x, at.y) for box in boxes) for at in places] for boxes, places in chosen]
            right = sum(places[:1] == [True] for places in hits)
            interval = wilson_interval(right, len(hits))
            found.append(Accuracy(group, value, len(hits), right, sum(map(any, hits)), right / len(hits), *interval))
    return found


async def evaluate_grounder(
    grounder: Grounder, items: Sequence[GroundingItem], k: int = 1, batch: int = 16
) -> list[Accuracy]:
    """Ask about every item, some at a time. Raises `EngineError`."""
    answers: list[tuple[GroundingItem, Sequence[Candidate]]] = []
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        found = await grounder.locate_batch([Query(item.description, item.screenshot()) for item in part], k)
        answers += [(item, answer.candidates) for item, answer in zip(part, found, strict=True)]
    return accuracies(answers)
