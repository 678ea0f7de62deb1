"""Pages that a whole group failed on, which the oracle then plays as they were dealt.

A group in which no rollout got a reward says only that its page is not known. Shown, the page is one more
demonstration, where one is needed; the experience pool and the trainer's rehearsal take it from there.
That an expert is asked where the policy fails is the idea of interactive imitation: it answers in the policy's own
states (DAgger; Ross et al., arXiv 1011.0686) or plays on from them (HG-DAgger; Kelly et al., 1810.02890). Here it plays
from the beginning, which an oracle with a recorded script can do as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.policies.policy import PlayableSession, Policy
from dart_train.core.data_states import SHOWN_MARK
from dart_train.rollout.play.ended_groups import EndedGroups
from dart_train.rollout.schedule.scheduler import Assignment, Scheduler


class ShownPages:
    """Decides which pages are shown.

    Args:
        scheduler: whose groups are watched.
        most: pages of each task; 0 for none.
        oracle: makes the policy that shows them on a session; None for none.
        known: pages by task that were shown in an earlier life of the run.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        most: int,
        oracle: Callable[[PlayableSession], Policy] | None,
        known: Mapping[str, int],
    ) -> None:
        self.oracle = oracle
        self._most = most if oracle is not None else 0
        self._groups = EndedGroups(scheduler)
        self._shown = Counter(known)

    def ended(self, assignment: Assignment, trajectory: Trajectory) -> Assignment | None:
        """Take an ended rollout, after the scheduler did; return what is to be shown if its group failed by this."""
        if not self._most or assignment.fork is not None:
            return None
        members = self._groups.ended(assignment, trajectory)
        failed = bool(members) and not any(played.score for _, played in members)
        if not failed or self._shown[assignment.task_id] >= self._most:
            return None
        self._shown[assignment.task_id] += 1
        return replace(assignment, group_key=f"{assignment.group_key}{SHOWN_MARK}", n=0, attempt=0, max_steps=None)
