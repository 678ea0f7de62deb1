"""A policy of your own: a class with `reset` and `act`, scored with confidence intervals.

Run it:

    python examples/own_policy.py                          # MiniWoB++ in Chromium on real desktops
    python examples/own_policy.py fake/click-button        # a drawn desktop

From this directory, `dart-agent eval miniwob/click-color --policy own_policy:ColorClicker` does the same.
"""

import argparse
import asyncio
import re

import numpy as np
from PIL import ImageColor

from dart_agent.evaluation.evaluate import evaluate_policy
from dart_agent.policies.policy import Decision, Episode
from dart_gym import Click, Fail, Observation


class ColorClicker:
    """Clicks what has the colour that the instruction names, or what is darkest where it names none."""

    def reset(self, episode: Episode) -> None:
        """Read the colour."""
        words = re.findall(r"[a-z]+", episode.instruction.lower())
        self.color = next((ImageColor.getrgb(word) for word in words if word in ImageColor.colormap), (0, 0, 0))

    async def act(self, observation: Observation) -> Decision:
        """Click, or give up."""
        screen = observation.screenshot.astype(int)  # (height, width, 3), RGB
        distance = np.abs(screen - self.color).sum(axis=2)
        if distance.min() > 400:
            return Decision(actions=(Fail("nothing here has that colour"),))
        ys, xs = np.nonzero(distance == distance.min())
        return Decision(actions=(Click(x=int(xs[-1]), y=int(ys[-1])),))  # the lowest: instructions stand above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=["miniwob/click-test", "miniwob/click-color"])
    parser.add_argument("--episodes", type=int, default=10)
    options = parser.parse_args()
    for score in asyncio.run(evaluate_policy(ColorClicker, options.tasks, episodes=options.episodes)):
        print(score)


if __name__ == "__main__":
    main()
