"""Fills a download cache with all files that a set of tasks needs, so that the set runs offline from it."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements.needs import downloads
from dart_gym.tasks.setup.download_cache import DownloadCache, DownloadError, mirror_candidates

PARALLEL = 4


@dataclass(slots=True)
class Mirrored:
    """What became of the files: in the cache already, from a directory, from the web, or by URL why they failed."""

    present: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    downloaded: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def wanted(tasks: Iterable[Task]) -> dict[str, str]:
    """URL: what a task calls the file, of all files that tasks need, in order."""
    return {download.url: download.name for task in tasks for download in downloads(task)}


async def mirror(
    tasks: Iterable[Task],
    cache: DownloadCache,
    source: Path | None = None,
    report: Callable[[str, str], None] = lambda url, outcome: None,
) -> Mirrored:
    """Put the files of tasks into a cache."""
    done, slots = Mirrored(), asyncio.Semaphore(PARALLEL)
    known = await asyncio.to_thread(_index, source) if source else {}

    async def provide(url: str, name: str) -> None:
        async with slots:
            report(url, await _provide(done, cache, known, url, name))

    async with asyncio.TaskGroup() as group:
        for url, name in wanted(tasks).items():
            group.create_task(provide(url, name))
    return done


async def _provide(done: Mirrored, cache: DownloadCache, known: dict[str, Path], url: str, name: str) -> str:
    if url in cache:
        done.present.append(url)
        return "present"
    path = next((known[candidate] for candidate in mirror_candidates(url, name) if candidate in known), None)
    try:
        if path is not None:
            await asyncio.to_thread(cache.add, url, path)
            done.imported.append(url)
            return "imported"
        await cache.fetch(url)
    except DownloadError as error:
        done.failed[url] = str(error)
        return str(error)
    done.downloaded.append(url)
    return "downloaded"


def _index(source: Path) -> dict[str, Path]:
    """Files of a directory by their path in it, and by their name alone, which OSWorld's caches make unique."""
    found: dict[str, Path] = {}
    for path in sorted(source.rglob("*")):
        if path.is_file():
            found.setdefault(path.name, path)
            found[path.relative_to(source).as_posix()] = path
    return found
