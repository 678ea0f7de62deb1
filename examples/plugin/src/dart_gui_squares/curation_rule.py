"""The curation rule "overlong": what a model did not finish to say is not trained on.

A rule is a subclass of `CurationRule` that overrides `drops` (one trajectory) or `drops_group` (a complete group). It
decides by what it is given and by nothing else, so that the same data are always decided in the same way. A run uses it
with `data: {curation: {rules: [overlong]}}`.
"""

from __future__ import annotations

from dart_agent.episodes.trajectory import Trajectory
from dart_train.data import CurationRule


class Overlong(CurationRule):
    """Drops trajectories with a response that was cut off at the limit of tokens (DAPO's overlong filtering)."""

    name = "overlong"  # in the database, the metrics and the status
    sentence = "with a response that was cut off"  # what a diagnosis says of them

    def drops(self, trajectory: Trajectory) -> bool:
        """Whether the engine stopped at the limit in any step."""
        return any(step.finish_reason == "length" for step in trajectory.steps)
