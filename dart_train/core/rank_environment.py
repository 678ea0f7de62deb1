"""Environment variables by which torchrun tells a process its place among those that train together. Needs no torch."""

import os

from dart_gym.utils.processes import follow_parent

_LOCAL_RANK = "LOCAL_RANK"


def local_rank() -> int:
    """Return the number of this process among those on this machine; 0 for a process alone."""
    return int(os.environ.get(_LOCAL_RANK, "0"))


def rank() -> int:
    """Return the number of this process among all; 0 for a process alone."""
    return int(os.environ.get("RANK", "0"))


def rank_count() -> int:
    """Return how many processes train together; 1 for a process alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def follow_launcher() -> None:
    """End with the launcher of the ranks, if one started this process: a launcher that is killed ends none of them."""
    if _LOCAL_RANK in os.environ:
        follow_parent()
