"""An episode among its forks: which of them goes on from which step of which, and how each of them ended. Pure.

Invariants:
    - The tree is that of the records that are given: an episode whose source is not among them is a root.
    - Records come from outside. One that continues itself, also by way of others, is in a tree once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dart_agent.episodes.trajectory import Trajectory

MOST_BRANCHES = 120
"""Episodes of a tree that are shown; the others are counted."""


@dataclass(frozen=True, slots=True)
class Branch:
    """An episode of a tree.

    Attributes:
        key: of the episode, as it was given.
        parent: key of the episode that it continues; None for the root.
        step: decisions of the episode before its own first one, replayed ones all.
        episode: its record.
    """

    key: int
    parent: int | None
    step: int
    episode: Trajectory


def tree_of(key: int, records: Iterable[tuple[int, Trajectory]]) -> list[Branch]:
    """Return the tree that an episode belongs to, its source first and each episode before those that continue it.

    Forks of one episode are in the order of their steps, continuations of one fork in that of their names.

    Args:
        key: of the episode.
        records: the episodes of one run by key, that one among them.
    """
    given = dict(records)
    names = {episode.trajectory_id: key for key, episode in given.items() if episode.trajectory_id}
    children: defaultdict[int, list[int]] = defaultdict(list)
    parents: dict[int, int] = {}
    for one, episode in given.items():
        parent = names.get(episode.forked_from) if episode.forked_from else None
        if parent is not None and parent != one:
            parents[one] = parent
            children[parent].append(one)
    root, climbed = key, {key}
    while (above := parents.get(root)) is not None and above not in climbed:
        root = above
        climbed.add(root)
    return [Branch(one, parent, given[one].fork_step, given[one]) for one, parent in _below(root, children, given)]


def _below(root: int, children: dict[int, list[int]], given: dict[int, Trajectory]) -> Iterator[tuple[int, int | None]]:
    """Walk a tree from its root, a parent before its children, each episode once."""
    pending: list[tuple[int, int | None]] = [(root, None)]
    seen: set[int] = set()
    while pending:
        one, parent = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one, parent
        below = sorted(children.get(one, ()), key=lambda child: (given[child].fork_step, given[child].trajectory_id))
        pending += [(child, one) for child in reversed(below)]
