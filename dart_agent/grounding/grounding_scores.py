"""Accuracy of a grounder by application, platform, kind and size of the element, with 95 % intervals."""

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

    @property
    def cells(self) -> tuple[str, ...]:
        """As a row of a table: group, value, items, accuracy, interval, any candidate right."""
        shares = f"{self.rate:.3f}", f"{self.low:.3f} to {self.high:.3f}", f"{self.hits_of_k / self.items:.3f}"
        return (self.group, self.value, str(self.items), *shares)


def size_of(item: GroundingItem) -> str:
    """Small, medium or large: its smallest box covers less than 0.1 %, less than 1 % or more of the screen."""
    share = min(box.area for box in item.boxes) / (item.screen[0] * item.screen[1])
    if share < 0.001:
        return "small"
    return "medium" if share < 0.01 else "large"


Answer = tuple[GroundingItem, Sequence[Candidate]]
_GROUPS: dict[str, Callable[[GroundingItem], str]] = {
    "all": lambda item: "",
    "application": lambda item: item.application,
    "platform": lambda item: item.platform,
    "kind": lambda item: item.kind,
    "size": size_of,
}


def is_hit(answer: Answer) -> bool:
    """Return whether the first candidate lies in one of the item's boxes. Pure."""
    return any(box.contains(at.x, at.y) for at in answer[1][:1] for box in answer[0].boxes)


def accuracies(answers: Sequence[Answer]) -> list[Accuracy]:
    """The accuracy on all items first, then of every group. Pure."""
    found = []
    for group, of in _GROUPS.items():
        for value in sorted({of(item) for item, _ in answers}):
            chosen = [(item, places) for item, places in answers if of(item) == value]
            right = sum(map(is_hit, chosen))
            of_k = sum(any(is_hit((item, [at])) for at in places) for item, places in chosen)
            interval = wilson_interval(right, len(chosen))
            found.append(Accuracy(group, value, len(chosen), right, of_k, right / len(chosen), *interval))
    return found


async def answers_of(grounder: Grounder, items: Sequence[GroundingItem], k: int = 1, batch: int = 16) -> list[Answer]:
    """Ask about every item, some at a time. Raises `EngineError`."""
    answers: list[Answer] = []
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        found = await grounder.locate_batch([Query(item.description, item.screenshot()) for item in part], k)
        answers += [(item, answer.candidates) for item, answer in zip(part, found, strict=True)]
    return answers


async def evaluate_grounder(grounder: Grounder, items: Sequence[GroundingItem], k: int = 1) -> list[Accuracy]:
    """The accuracy on items that a grounder is asked about. Raises `EngineError`."""
    return accuracies(await answers_of(grounder, items, k))
