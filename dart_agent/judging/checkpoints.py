"""An evaluator's checkpoints as a reward: how far the task had come, as its scenario measured it after each step."""

from dart_agent.episodes.trajectory import Trajectory
from dart_agent.judging.judge import Judgement, Screens


class Checkpoints:
    """Judges by `Step.progress`: the episode by its last one, each step by what it added.

    Tasks without checkpoints are not judged.
    """

    async def start(self) -> None:
        """Nothing is to be opened."""

    async def judge(self, episode: Trajectory, screens: Screens) -> Judgement:
        """Return the progress of the episode and of each step."""
        known = [step.progress for step in episode.steps]
        measured = [progress for progress in known if progress is not None]
        if not measured or len(measured) < len(known):
            return Judgement(said="the task has no checkpoints")
        before = [0.0, *measured[:-1]]
        return Judgement(measured[-1], tuple(now - then for now, then in zip(measured, before, strict=True)))

    async def close(self) -> None:
        """Nothing is open."""
