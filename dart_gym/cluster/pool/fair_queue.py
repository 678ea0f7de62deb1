"""Who gets a slot when slots are short: round robin over owners, first come first served within one. Pure.

Invariants:
    - An owner whose quota is used up waits without holding up anybody else.
    - Of the others, the one that was served longest ago comes next, so that it waits for each other owner once at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Quota = Callable[[str], int | None]
"""How many slots an owner may have at once; None for any number."""


def unlimited(owner: str) -> None:
    """The quota where there is none."""
    return None


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody waits for a slot.

    Attributes:
        owner: name of the account that the slot counts for.
        number: order of arrival; later claims have larger numbers.
    """

    owner: str
    number: int


def allowed(owner: str, lent: Mapping[str, int], quota: Quota) -> bool:
    """Whether an owner may have one more slot."""
    limit = quota(owner)
    return limit is None or lent.get(owner, 0) < limit


def next_claim(
    claims: Iterable[Claim], lent: Mapping[str, int], served: Mapping[str, int], quota: Quota
) -> Claim | None:
    """The claim that gets the next free slot; None when every owner that waits has used up its quota.

    Args:
        claims: all claims that wait, in any order.
        lent: slots that each owner has now.
        served: when each owner was last given a slot, as a number; larger is later.
        quota: tells how many slots an owner may have at once.
    """
    first: dict[str, Claim] = {}
    for claim in sorted(claims, key=lambda claim: claim.number):
        first.setdefault(claim.owner, claim)
    candidates = [claim for claim in first.values() if allowed(claim.owner, lent, quota)]
    return min(candidates, key=lambda claim: (served.get(claim.owner, 0), claim.number), default=None)
