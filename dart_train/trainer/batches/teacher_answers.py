"""Whether the teacher answers: by all that has ended since the lease before, be it trained on or not.

A group that failed and of which no member was taught has no signal and is dropped. So leases alone would never show a
teacher that is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dart_train.data.insight import statistics

if TYPE_CHECKING:
    from dart_train.data.manager.run_insight import Insight


class TeacherAnswers:
    """Counts the episodes that a teacher was to teach, and those that it did, from call to call.

    Args:
        data: the run's.
        always: whether all rollouts are to be taught; otherwise those whose score is 0.
    """

    def __init__(self, data: Insight, *, always: bool) -> None:
        self._data = data
        self._always = always
        self._newest = 0

    def __call__(self) -> dict[str, float]:
        """Return the share of the episodes that were taught since the last call; nothing where none was to be."""
        asked = self._data.read(statistics.asked, self._newest, always=self._always)
        self._newest = asked.newest
        return {"teacher/answered": 1.0 - asked.untaught / asked.episodes} if asked.episodes else {}
