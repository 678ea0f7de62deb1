"""The action of a task's oracle in a state, in the words of the student's action format."""

from dart_agent.formats import InexpressibleError
from dart_agent.policies.oracle_policy import snapped
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Observation
from dart_train.rollout.teachers.teacher import Student


async def oracle_words(student: Student, session: PlayableSession, observation: Observation) -> str:
    """Return the oracle's next action as the student would write it; "" if the task has no oracle, or it is lost."""
    space = student.vision.space(*observation.screenshot.shape[:2])
    try:
        action = snapped(await session.oracle(), student.grid, space)
        return student.action_format.format((action,), space)
    except (TaskError, InexpressibleError):
        return ""
