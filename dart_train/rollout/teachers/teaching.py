"""Teaching: lessons are added to episodes without a reward before they are recorded, beside the play.

Invariants:
    - Each episode that is handed in is recorded exactly once: with all lessons, some, or none. No worker waits.
    - If a teacher fails, hangs or dies, only its lessons are lost. Episodes are recorded without them, the teacher is
      retried with growing pauses, and the log says when it goes away and when it is back.
    - When the service ends, episodes without a lesson within the time limit are recorded as they are.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Any, Literal

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.policies.policy import PlayableSession, Policy
from dart_train.core.availability import Availability
from dart_train.rollout.ended.ended_episodes import EndedEpisodes, Record
from dart_train.rollout.teachers.advised_policy import AdvisedPolicy
from dart_train.rollout.teachers.teacher import Teacher, TeacherAwayError


class Teaching:
    """The teaching of a rollout service, with a teacher or without.

    Args:
        teacher: the teacher; None records everything as it is played.
        record: takes the taught episodes.
        when: episodes to teach: those without a reward, or all. Only the trainer knows whether a whole group has
            failed, and it uses the lessons accordingly.
        timeout_s: time limit in seconds for all steps of an episode.

    Attributes:
        taught: number of steps with a lesson.
        untaught: number of episodes that should have one and have none.
    """

    def __init__(
        self,
        teacher: Teacher | None,
        record: Record,
        *,
        when: Literal["failed", "always"] = "failed",
        timeout_s: float = 60.0,
    ) -> None:
        self.taught = self.untaught = 0
        self._teacher = teacher
        self._record = record
        self._when = when
        self._timeout_s = timeout_s
        self._availability = Availability("the teacher", math.inf)
        self._again = 0.0
        self._ready = False
        self._starting = asyncio.Lock()
        self._ended = EndedEpisodes(self._teach, record)

    @property
    def enabled(self) -> bool:
        """Return whether there is a teacher."""
        return self._teacher is not None

    @property
    def waiting(self) -> int:
        """Episodes that have been handed in and are not recorded yet."""
        return self._ended.waiting

    @property
    def full(self) -> bool:
        """Return whether workers should wait before they begin new episodes."""
        return self._ended.full

    @property
    def wants_tree(self) -> bool:
        """Return whether observations must hold the accessibility tree."""
        return bool(getattr(self._teacher, "wants_tree", False))

    async def start(self, *, resumed: bool = False) -> None:
        """Start the teacher. If a run is resumed and the teacher is away, it is retried later.

        Raises:
            TeacherError: if it cannot teach the student, or cannot be reached and the run is not `resumed`.
        """
        if self._teacher is None:
            return
        try:
            await self._get_ready(self._teacher)
        except TeacherAwayError as error:
            if not resumed:
                raise
            self._put_off(error)

    def advised(self, policy: Policy, session: PlayableSession) -> Policy:
        """Return the policy of an episode, observed by the teacher once that has started."""
        return AdvisedPolicy(policy, self._teacher, session) if self._teacher is not None and self._ready else policy

    def hand_in(self, trajectory: Trajectory, expected: int) -> None:
        """Teach an episode that has ended, if it is to be taught, and record it."""
        if self._teacher is None or not self._wants(trajectory):
            self._record(trajectory, expected)
            return
        self._ended.hand_in(trajectory, expected)

    async def settle(self, limit_s: float) -> None:
        """Wait for the episodes in work; record those that take longer than the limit as they are."""
        await self._ended.settle(limit_s)

    async def close(self) -> None:
        """Close the teacher. Call `settle` before."""
        if self._teacher is not None:
            await self._teacher.close()

    def figures(self) -> dict[str, Any]:
        """Return the teacher's part of a metrics line; empty without a teacher."""
        if self._teacher is None:
            return {}
        state = self._availability.state()
        away = f"{state.what} for {state.seconds:.0f} s: {state.reason}" if state is not None else ""
        return {"teacher": {"steps": self.taught, "untaught": self.untaught, "waiting": self.waiting, "away": away}}

    def _wants(self, trajectory: Trajectory) -> bool:
        return trajectory.trainable and (self._when == "always" or not trajectory.score)

    async def _teach(self, standing: list[Trajectory]) -> None:
        lessons = list(standing[0].steps)
        try:
            if self._teacher is not None and time.monotonic() >= self._again:
                await self._ask(self._teacher, lessons)
        finally:  # also when cancelled
            standing[0] = taught = replace(standing[0], steps=tuple(lessons))
            self.taught += taught.taught_steps
            self.untaught += taught.taught_steps == 0

    async def _ask(self, teacher: Teacher, lessons: list[Step]) -> None:
        """Replace each step by its lesson, as far as the teacher answers."""
        errors: list[Exception] = []
        played = tuple(lessons)

        async def ask(place: int) -> None:
            try:
                lessons[place] = await teacher.teach(played, place)
            except Exception as error:  # an engine or a plug-in failed: the step goes on without a lesson
                errors.append(error)

        try:
            async with asyncio.timeout(self._timeout_s):
                await self._get_ready(teacher)
                await asyncio.gather(*(ask(place) for place in range(len(lessons))))
        except TimeoutError:
            errors.append(TimeoutError(f"no answer about an episode within {self._timeout_s:g} s"))
        except Exception as error:  # it is still away, or a plug-in cannot start
            errors.append(error)
        if not errors:
            self._availability.restored()
            return
        self._put_off(errors[0])

    async def _get_ready(self, teacher: Teacher) -> None:
        async with self._starting:
            if not self._ready:
                await teacher.start()
                self._ready = True

    def _put_off(self, error: Exception) -> None:
        pause = self._availability.failed(f"{type(error).__name__}: {error}")
        self._again = time.monotonic() + pause
