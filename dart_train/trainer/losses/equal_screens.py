"""Credit by step: steps of a group that were decided in front of the same screen are compared with one another (GiGPO).

    A_k = A^E + w A^S_k
    A^E    the advantage of the trajectory among those of its group
    A^S_k  (Q_k - mean Q) / (std Q + 1e-6) over the steps of the group that saw the same screen; 0 where it was alone
    Q_k    gamma^(T - 1 - k) R, the discounted return of step k of T

Source: GiGPO (arXiv 2505.10978; verl-agent's `gigpo`). A trajectory that came back to a screen, or passed it in vain,
has a smaller Q there than one that succeeded afterwards, so its detour is not rewarded as well.

Screens are equal by the hash of their pixels, with what changes by itself painted over: the pointer, which is drawn
where the last action left it, and boxes that are given, such as a clock.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dart_agent.episodes.screen_difference import Pixels, painted, pointer_after
from dart_agent.episodes.trajectory import Step
from dart_train.trainer.losses.advantages import GroupRewards, ScaleRewards, TrajectoryAdvantage

EPSILON = 1e-6


@dataclass(frozen=True)
class EqualScreensAdvantage:
    """GiGPO: the trajectory's advantage, and that of each step among those before the same screen.

    Attributes:
        scale_rewards: "group" divides both by deviations, "batch" the first by that of the lease, "none" neither.
        pointer: half the side in pixels of the real screen of the square that is painted over the pointer.
        masked: (x, y, width, height) of boxes that are painted over, in pixels of the real screen.
    """

    needs_screens: ClassVar[bool] = True

    scale_rewards: ScaleRewards = "group"
    gamma: float = 0.95
    step_weight: float = 1.0
    pointer: int = 24
    masked: tuple[tuple[int, int, int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"gamma={self.gamma!r} is a discount: choose a value above 0 and at most 1")
        if any(len(box) != 4 for box in self.masked):
            raise ValueError(f"masked={self.masked!r}: each box is [x, y, width, height]")

    def __call__(self, group: GroupRewards) -> Sequence[NDArray[np.float64]]:
        """One array of a trajectory's steps for each trajectory."""
        episodes = TrajectoryAdvantage(self.scale_rewards)(group)
        returns = [
            reward * self.gamma ** np.arange(length - 1, -1, -1, dtype=np.float64)
            for reward, length in zip(group.rewards, group.lengths, strict=True)
        ]
        steps = step_advantages(self.anchors(group), returns, scaled=self.scale_rewards != "none")
        return [episode + self.step_weight * own for episode, own in zip(episodes, steps, strict=True)]

    def anchors(self, group: GroupRewards) -> list[list[str]]:
        """Return what each step of each trajectory saw."""
        if group.load_screen is None:
            raise ValueError("this advantage looks at screenshots, and was given none")
        return [screens_seen(steps, group.load_screen, self.pointer, self.masked) for steps in group.steps]


def step_advantages(
    anchors: Sequence[Sequence[str]], returns: Sequence[NDArray[np.float64]], *, scaled: bool
) -> list[NDArray[np.float64]]:
    """A^S of each step of each trajectory, by what it saw and its return. Pure."""
    seen: dict[str, list[float]] = {}
    for names, values in zip(anchors, returns, strict=True):
        for name, value in zip(names, values, strict=True):
            seen.setdefault(name, []).append(float(value))
    found = []
    for names, values in zip(anchors, returns, strict=True):
        own = np.zeros(len(values))
        for place, name in enumerate(names):
            others = np.array(seen[name])
            if len(others) > 1:
                own[place] = values[place] - others.mean()
                own[place] /= others.std(ddof=1) + EPSILON if scaled else 1.0
        found.append(own)
    return found


def screens_seen(
    steps: Sequence[Step], load: Callable[[str], Pixels], pointer: int, masked: Sequence[tuple[int, int, int, int]]
) -> list[str]:
    """Names of the screens that a trajectory's steps were decided on, alone without a screenshot. See `anchor`."""
    names, at = [], None
    for place, step in enumerate(steps):
        shown = step.screenshot or (step.image_hashes[-1] if step.image_hashes else "")
        names.append(anchor(load(shown), step.screen, at, pointer, masked) if shown else f"{id(steps)}/{place}")
        at = pointer_after(step, at)
    return names


def anchor(
    image: Pixels,
    screen: tuple[int, int],
    at: tuple[int, int] | None,
    pointer: int,
    masked: Sequence[tuple[int, int, int, int]],
) -> str:
    """A name that equal screens share: the hash of the pixels, with pointer and boxes painted over."""
    height, width = image.shape[:2]
    hidden = painted(image, screen, at, pointer, masked)
    return hashlib.blake2b(hidden.tobytes(), digest_size=16, salt=f"{width}x{height}".encode()).hexdigest()
