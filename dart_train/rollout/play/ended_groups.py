"""Groups in play whose last member has ended: their members are kept until then."""

from dart_agent.episodes.trajectory import Trajectory
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler

Members = list[tuple[Assignment, Trajectory]]


class EndedGroups:
    """Collects the trainable members of a scheduler's groups.

    Attributes:
        played: members of open groups, by the group's key.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.played: dict[str, Members] = {}

    def ended(self, assignment: Assignment, trajectory: Trajectory) -> Members:
        """Take an ended rollout, after the scheduler did; return its group in order if this completes it, else []."""
        open_keys = set(self._scheduler.open_keys)
        key = assignment.group_key
        if trajectory.trainable:
            self.played.setdefault(key, []).append((assignment, trajectory))
        whole = self.played.pop(key, []) if key not in open_keys else []
        self.played = {other: members for other, members in self.played.items() if other in open_keys}
        return sorted(whole, key=lambda member: member[0].n) if len(whole) == assignment.group_size else []
