"""DAgger: in each state that the student reaches, the oracle's answer is the training target.

The states are the student's own, so it learns how to recover from its own mistakes, which demonstrations never show.
Source: Ross, Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
Learning" (arXiv 1011.0686), with the student playing always (beta_i = 0 for every iteration). The loss is the mean
cross-entropy of the answers (`dart_train.trainer.losses.teacher_loss`).

The oracle must look at the state. One that follows a recorded script only knows its own path.
"""

from dataclasses import replace

from dart_agent.episodes.trajectory import Step
from dart_agent.policies.policy import PlayableSession
from dart_gym.core.outcomes import Observation
from dart_gym.core.section import Section
from dart_train.rollout.teachers.oracle_words import oracle_words
from dart_train.rollout.teachers.teacher import Student


class DaggerOptions(Section):
    """`dagger` has no options: clicks are answered as they were demonstrated (`demonstrations.grid`)."""


class Dagger:
    """A `Teacher` whose answers are the oracle's."""

    Options = DaggerOptions

    def __init__(self, student: Student) -> None:
        self._student = student

    async def start(self) -> None:
        """Do nothing: there is nothing to open."""

    async def see(self, session: PlayableSession, observation: Observation) -> str:
        """Return the oracle's action in the student's words."""
        return await oracle_words(self._student, session, observation)

    async def teach(self, step: Step) -> Step:
        """Return the step with the oracle's answer as its target."""
        if not step.advice:
            return step
        return replace(step, target_ids=tuple(self._student.tokens.response(step.advice)))

    async def close(self) -> None:
        """Do nothing: nothing is open."""
