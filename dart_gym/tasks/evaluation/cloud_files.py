"""Puts the expected files of an evaluation where OSWorld's getter `cloud_file` finds them.

The evaluator worker has no network, and its getter downloads nothing that lies in the cache directory already.
"""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from dart_gym.core.errors import EvaluationFailure
from dart_gym.tasks.evaluation.score_rules import Plan
from dart_gym.tasks.setup.setup_runner import StepError, cached_path

Fetch = Callable[[str, Path], Awaitable[None]]


def cloud_files(plan: Plan) -> Iterator[tuple[str, str]]:
    """URL and file name of each file of a plan's getters `cloud_file`. Pure. Raises `EvaluationFailure`."""
    for check in plan.checks:
        for config in (check.result, check.expected):
            if config and config.get("type") == "cloud_file":
                yield from _files(config)


def _files(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    path, dest = config.get("path"), config.get("dest")
    paths, names = (path, dest) if config.get("multi", False) else ([path], [dest])
    if not isinstance(paths, list) or not isinstance(names, list) or len(paths) != len(names):
        raise EvaluationFailure("getter cloud_file: 'path' and 'dest' must be lists of the same length where 'multi'")
    for url, name in zip(paths, names, strict=True):
        if not isinstance(url, str) or not isinstance(name, str):
            raise EvaluationFailure(f"getter cloud_file: 'path' and 'dest' must be text, got {url!r} and {name!r}")
        yield url, name


async def provide_cloud_files(plan: Plan, cache: Path, fetch: Fetch | None) -> None:
    """Fetch a plan's files into the evaluation's cache directory.

    Raises:
        EvaluationFailure: if there is no way to get a file.
    """
    for url, name in cloud_files(plan):
        if fetch is None:
            raise EvaluationFailure(f"the expected file {url} is needed, and this evaluation has no download cache")
        try:
            await fetch(url, cached_path(cache, name))
        except (OSError, StepError) as error:
            raise EvaluationFailure(f"the expected file {url} could not be fetched: {error}") from error
