"""A policy of your own: any function from what is seen to actions, in a class with two methods."""

import numpy as np

from dart_agent.policies.policy import Decision, Episode
from dart_gym import Action, Click, Observation

COLORS = {"red": (240, 110, 110), "green": (120, 210, 120), "blue": (120, 160, 250), "yellow": (240, 220, 90)}


def choose(instruction: str, screenshot: np.ndarray) -> Action:
    """Click in the middle of what has the first colour that the instruction names. Put your own function here."""
    color = next((color for color in COLORS if color in instruction), "red")
    near = np.abs(screenshot - np.array(COLORS[color])).sum(axis=2) < 40
    rows, columns = np.nonzero(near)
    return Click(x=int(columns.mean()), y=int(rows.mean())) if rows.size else Click(x=0, y=0)


class Clicker:
    """What `dart-agent` plays: told of the task by `reset`, asked for actions by `act`."""

    def reset(self, episode: Episode) -> None:
        """Remember the instruction."""
        self.instruction = episode.instruction

    async def act(self, observation: Observation) -> Decision:
        """Return what to do about a screenshot."""
        return Decision(actions=(choose(self.instruction, observation.screenshot),))
