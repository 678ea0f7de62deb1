"""Rates of what was counted, with intervals. Pure."""

import math

Z95 = 1.959964


def wilson_interval(successes: int, episodes: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's confidence interval of a rate (95 % by default); (0, 1) where nothing was tried.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927): the p for which |p - s/n| <= z sqrt(p (1 - p) / n).
    """
    if not 0 <= successes <= episodes:
        raise ValueError(f"{successes} successes in {episodes} episodes")
    if episodes == 0:
        return 0.0, 1.0
    rate = successes / episodes
    scale = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes))
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == episodes else centre + half)
