"""Which trajectories' files are kept, and for how long: the settings, and the decision, which is pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import Field

from dart_gym.core.section import Section


class RetentionConfig(Section):
    """What is kept of trajectories that are done with. The data manager's process sees to it once an hour."""

    max_age_days: float | None = Field(
        None, ge=0.0, description="Days after which the files of an ended trajectory are removed; null keeps them."
    )
    max_gigabytes: float | None = Field(
        None, ge=0.0, description="Gigabytes of files above which the oldest are removed; null for no limit."
    )
    webp_after_days: float | None = Field(
        None,
        ge=0.0,
        description="Days after which screenshots are encoded anew as lossless WebP; null leaves them PNG.",
    )

    @property
    def limited(self) -> bool:
        """Return whether there is anything to clear away or to encode anew, in time."""
        return (self.max_age_days, self.max_gigabytes, self.webp_after_days) != (None, None, None)


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """A trajectory that has files (`size`: its own file); `removable` where it is done with, and not in the pool."""

    trajectory_id: str
    ended_at: float
    size: int
    image_ids: frozenset[str]
    removable: bool


def plan_removal(
    stored: Iterable[StoredTrajectory],
    image_sizes: Mapping[str, int],
    *,
    now: float,
    max_age_s: float | None,
    max_bytes: float | None,
) -> list[str]:
    """Return the ids of the trajectories whose files go, oldest first.

    By age: all that are older. By size: the oldest until what stays fits; a screenshot counts once, and is freed with
    the last trajectory that shows it. Where all that may go is not enough, the rest stays.
    """
    items = sorted(stored, key=lambda item: (item.ended_at, item.trajectory_id))
    shown = Counter(name for item in items for name in item.image_ids)
    total = sum(item.size for item in items) + sum(image_sizes.get(name, 0) for name in shown)
    removed = []
    for item in items:
        too_old = max_age_s is not None and now - item.ended_at > max_age_s
        too_much = max_bytes is not None and total > max_bytes
        if not item.removable or not (too_old or too_much):
            continue
        removed.append(item.trajectory_id)
        total -= item.size
        for name in item.image_ids:
            shown[name] -= 1
            if shown[name] == 0:
                total -= image_sizes.get(name, 0)
    return removed
