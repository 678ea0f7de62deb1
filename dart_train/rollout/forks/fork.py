"""A fork: from which step of which episode continuations are played, and what has to be replayed to get there. Pure."""

from dataclasses import dataclass, field, replace

from dart_agent.episodes.trajectory import Step, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """A step of an episode from which other continuations are played.

    Attributes:
        parent: id of the trajectory that is forked.
        prefix: the decisions before the fork, from the episode's beginning, those of the parent's own fork included.
        recorded: the decision that the parent took at the fork; its prompt shows what must be seen there again.
        depth: 1 for a fork of a rollout, 2 for a fork of a fork's continuation.
        tolerance: share of the pixels of each screenshot in the prompt that may differ.
    """

    parent: str
    prefix: tuple[Step, ...] = field(repr=False)
    recorded: Step = field(repr=False)
    depth: int = 1
    tolerance: float = 0.0

    @property
    def step(self) -> int:
        """Decisions of the episode before the fork."""
        return len(self.prefix)


def fork_at(episode: Trajectory, step: int, own: Fork | None, tolerance: float) -> Fork:
    """Return the fork at a recorded step of an episode, which is itself the continuation of its `own` fork, or None.

    Args:
        episode: as it was played, with pixels.
        step: place among its recorded steps.
        own: the fork that it continues.
        tolerance: see `Fork`.
    """
    before = own.prefix if own is not None else ()
    depth = own.depth + 1 if own is not None else 1
    new = (replace(one, pixels=None) for one in episode.steps[:step])
    return Fork(episode.trajectory_id, (*before, *new), episode.steps[step], depth, tolerance)


def can_fork(episode: Trajectory, step: int) -> bool:
    """Return whether an episode can be forked at one of its recorded steps: something is replayed, and all of it known.

    The first step is no fork: its continuations would be another group of the same seed.
    """
    return (
        0 < step < len(episode.steps)
        and episode.deterministic
        and all(before.actions and before.response_ids for before in episode.steps[:step])
    )
