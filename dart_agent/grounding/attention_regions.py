"""Between boxes of the screen and patches: targets of the training, and candidates from an attention map. Pure numpy.

After GUI-Actor (arXiv 2506.03143), which is trained on all patches that a box overlaps, and clicks on the region of
high attention whose mean is highest. A grid is (rows, columns) of patches, a screen (width, height) in pixels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dart_agent.grounding.candidate import Box, Candidate

THRESHOLD, JUDGED = 0.3, 0.2
"""Share of the highest attention that a patch of a region exceeds; the same where a verifier chooses, as published."""


def patch_mask(boxes: Sequence[Box], screen: tuple[int, int], grid: tuple[int, int]) -> NDArray[np.bool_]:
    """(rows, columns), True on the patches that any box overlaps: at least one for a box with area on the screen."""
    (width, height), (rows, columns) = screen, grid
    mask = np.zeros(grid, bool)
    for box in boxes:
        left, top = max(0.0, box.left), max(0.0, box.top)
        right, bottom = min(float(width), box.right), min(float(height), box.bottom)
        if left < right and top < bottom:
            across = slice(int(left * columns / width), int(np.ceil(right * columns / width)))
            mask[int(top * rows / height) : int(np.ceil(bottom * rows / height)), across] = True
    return mask


def regions(attention: NDArray[np.floating], threshold: float = THRESHOLD) -> list[NDArray[np.int64]]:
    """Patches above a share of the maximum, in groups that hang together along edges: (patches, 2) rows and columns."""
    left = {(int(row), int(column)) for row, column in np.argwhere(attention > threshold * attention.max())}
    found = []
    while left:
        region = [left.pop()]
        for row, column in region:  # grows while it is walked through
            for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if near in left:
                    left.remove(near)
                    region.append(near)
        found.append(np.array(sorted(region), np.int64))
    return sorted(found, key=lambda patches: tuple(patches[0]))


def candidates_of(
    attention: NDArray[np.floating], screen: tuple[int, int], k: int, threshold: float = THRESHOLD
) -> list[Candidate]:
    """The k regions of highest mean (rows, columns) attention, each at the attention-weighted mean of its patches."""
    rows, columns = attention.shape
    tall, wide = screen[1] / rows, screen[0] / columns
    found = []
    for patches in regions(attention, threshold):
        weights = attention[patches[:, 0], patches[:, 1]].astype(np.float64)
        row, column = np.average(patches + 0.5, axis=0, weights=weights)
        (first_row, first_column), (last_row, last_column) = patches.min(0).tolist(), (patches.max(0) + 1).tolist()
        box = Box(first_column * wide, first_row * tall, last_column * wide, last_row * tall)
        found.append(Candidate(int(column * wide), int(row * tall), float(weights.mean()), box))
    return sorted(found, key=lambda candidate: -candidate.score)[:k]
