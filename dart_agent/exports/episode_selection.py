"""Which recorded episodes are exported: by score, source and task."""

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from dart_agent.episodes.episode_files import RecordError, read_episode


def select_episodes(
    episodes: Iterable[Path],
    *,
    min_score: float | None = None,
    sources: Sequence[str] = (),
    tasks: Sequence[str] = (),
) -> tuple[list[Path], Counter[str]]:
    """Return the episodes to export, and how many others were left out, by reason.

    Args:
        episodes: directories of recorded episodes.
        min_score: least score; an episode without a score is left out then.
        sources: such as "rollout", "evaluation", "oracle" or "human"; empty for all but "fork",
            whose episodes lack their beginnings.
        tasks: names or patterns such as "miniwob/*"; empty for all.
    """
    chosen: list[Path] = []
    left_out: Counter[str] = Counter()
    damaged: list[RecordError] = []
    for path in episodes:
        try:
            record = read_episode(path, steps=False)
        except RecordError as error:
            damaged.append(error)
            continue
        if tasks and not any(fnmatch.fnmatchcase(record.task_id, pattern) for pattern in tasks):
            left_out["of other tasks"] += 1
        elif sources and record.source not in sources:
            left_out["of other sources"] += 1
        elif record.forked_from and record.source not in sources:
            left_out["that continue another episode"] += 1
        elif min_score is not None and (record.score is None or record.score < min_score):
            left_out[f"with a score below {min_score:g} or none"] += 1
        else:
            chosen.append(path)
    if damaged:
        left_out[f"that are damaged ({damaged[0]})"] = len(damaged)
    return chosen, left_out
