"""A fork: the step of an episode where continuations begin, and the decisions to replay before it. Pure."""

from dataclasses import dataclass, field, replace

from dart_agent.episodes.trajectory import Step, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """A step of an episode from which continuations are played.

    Attributes:
        parent: id of the trajectory that is forked.
        prefix: the decisions before the fork, from the beginning of the episode, including the prefix of the parent if
            that is itself a continuation.
        recorded: the parent's decision at the fork; its prompt shows what must be seen there again.
        depth: 1 for a fork of a rollout, 2 for a fork of a fork's continuation.
        tolerance: share of the pixels of each screenshot of the prompt that may differ.
    """

    parent: str
    prefix: tuple[Step, ...] = field(repr=False)
    recorded: Step = field(repr=False)
    depth: int = 1
    tolerance: float = 0.0

    @property
    def step(self) -> int:
        """Number of decisions before the fork."""
        return len(self.prefix)


def fork_at(episode: Trajectory, step: int, own: Fork | None, tolerance: float) -> Fork:
    """Return the fork at a recorded step of an episode.

    Args:
        episode: the episode as it was played, with pixels.
        step: index among its recorded steps.
        own: the fork that the episode itself continues; None for an episode that is not a continuation.
        tolerance: see `Fork`.
    """
    before = own.prefix if own is not None else ()
    depth = own.depth + 1 if own is not None else 1
    new = (replace(one, pixels=None) for one in episode.steps[:step])
    return Fork(episode.trajectory_id, (*before, *new), episode.steps[step], depth, tolerance)


def can_fork(episode: Trajectory, step: int) -> bool:
    """Return whether an episode can be forked at a recorded step: all steps before it are known and can be replayed.

    The first step is excluded: its continuations would only be another group of the same seed.
    """
    return (
        0 < step < len(episode.steps)
        and episode.deterministic
        and all(before.actions and before.response_ids for before in episode.steps[:step])
    )
