"""The policy of a student with a teacher: it decides by itself, and notes of the teacher are recorded."""

from __future__ import annotations

import logging
from dataclasses import replace

from dart_agent.policies.policy import Decision, Episode, PlayableSession, Policy
from dart_gym.core.errors import ClusterError, DesktopError, ServerDefectError
from dart_gym.core.outcomes import Observation
from dart_train.rollout.teachers.teacher import Teacher

_log = logging.getLogger(__name__)


class AdvisedPolicy:
    """A `Policy` that decides as another one does. The teacher is asked only about decisions of an engine."""

    def __init__(self, policy: Policy, teacher: Teacher, session: PlayableSession) -> None:
        self._policy = policy
        self._teacher = teacher
        self._session = session

    def reset(self, episode: Episode) -> None:
        """Start the policy's episode."""
        self._policy.reset(episode)

    async def act(self, observation: Observation) -> Decision:
        """Return the policy's decision with the note of the teacher, if there is one."""
        decision = await self._policy.act(observation)
        if decision.generation is None:
            return decision
        try:
            advice = await self._teacher.see(self._session, observation)
        except Exception as error:  # the teacher is a plug-in: the episode goes on without a note
            if _loses_the_desktop(error):
                raise
            _log.warning("the teacher notes nothing of a state: %s: %s", type(error).__name__, error)
            return decision
        return replace(decision, advice=advice)


def _loses_the_desktop(error: Exception) -> bool:
    """Return whether the episode is lost with what failed, and not only an answer, such as that of a broken oracle."""
    return isinstance(error, ClusterError | DesktopError) and not isinstance(error, ServerDefectError)
