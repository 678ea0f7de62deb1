"""How far apart two ways are, what is to be expected, and the first token where they part. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from dart_train.core.tolerances import EXACT, FLOAT32, HALF, HALF_MEAN


@dataclass(frozen=True, slots=True)
class Gap:
    """How far a way is from another.

    Attributes:
        expected: most that rounding explains, in nats.
        parts: (step, token, one's, the other's) of the first token that is further off, or None.
    """

    pair: str
    mean: float
    largest: float
    expected: float
    parts: tuple[int, int, float, float] | None

    @property
    def agrees(self) -> bool:
        """Return whether rounding explains it."""
        return self.parts is None and not (self.expected >= HALF and self.mean > HALF_MEAN)


def gap(
    name: str, one: Sequence[Sequence[float]], other_name: str, other: Sequence[Sequence[float]], expected: float
) -> Gap:
    """Compare two ways by the log-probabilities of each step's tokens; `expected` nats are explained by rounding."""
    pairs = [
        (step, place, left, right)
        for step, (lefts, rights) in enumerate(zip(one, other, strict=True))
        for place, (left, right) in enumerate(zip(lefts, rights, strict=True))
    ]
    apart = [abs(left - right) for *_, left, right in pairs]
    # Not "larger than": what is no number is further off than anything.
    first = next((pair for pair, far in zip(pairs, apart, strict=True) if not far <= expected), None)
    largest = max(apart, key=lambda far: far if far == far else float("inf"))
    return Gap(f"{name}_vs_{other_name}".replace(" ", "_"), sum(apart) / len(apart), largest, expected, first)


def expected_gap(*, layers: int, half: bool) -> float:
    """Most that rounding explains, in nats; `half`: whether one of the two computes in bfloat16 or float16."""
    if half:
        return HALF
    return EXACT if layers <= 4 else FLOAT32


def gap_table(gaps: Sequence[Gap], spelled: Callable[[int, int], str]) -> Table:
    """The table that a person reads; `spelled` gives the text of a step's token."""
    table = Table(box=None, pad_edge=False)
    for column in ("pair", "mean gap", "largest", "to expect", "first token where they part"):
        side: Literal["left", "right"] = "left" if column in ("pair", "first token where they part") else "right"
        table.add_column(column, justify=side, no_wrap=column == "pair")
    for item in gaps:
        where = ""
        if item.parts is not None:
            step, place, left, right = item.parts
            where = f"step {step}, token {place} {spelled(step, place)!r}: {left:.4f} and {right:.4f}"
        elif not item.agrees:
            where = "none, but all are off"
        style = "green" if item.agrees else "red"
        table.add_row(
            item.pair, f"{item.mean:.2e}", Text(f"{item.largest:.2e}", style), f"{item.expected:.0e}", Text(where)
        )
    return table
