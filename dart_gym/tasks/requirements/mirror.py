"""Fills a download cache with all files that a set of tasks needs, so that the set runs offline from it."""

import asyncio
import filecmp
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import normalize

from dart_gym.core.task_group import TaskGroup
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.requirements.needs import downloads
from dart_gym.tasks.setup.download_cache import DOWNLOAD_TIMEOUT_S, DownloadCache, DownloadError, mirror_candidates

PARALLEL = 4
_OSWORLDS_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_")


@dataclass(slots=True)
class Mirrored:
    """What became of the files: in the cache already, from a directory, from the web, or by URL why they failed."""

    present: list[str] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    downloaded: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def wanted(tasks: Iterable[Task]) -> dict[str, list[str]]:
    """URL: what tasks call the file, of all files that tasks need, in order."""
    found: dict[str, list[str]] = {}
    for download in (download for task in tasks for download in downloads(task)):
        names = found.setdefault(download.url, [])
        if download.name not in names:
            names.append(download.name)
    return found


async def mirror(
    tasks: Iterable[Task],
    cache: DownloadCache,
    source: Path | None = None,
    report: Callable[[str, str], None] = lambda url, outcome: None,
    timeout_s: float = DOWNLOAD_TIMEOUT_S,
) -> Mirrored:
    """Put the files of tasks into a cache; no file may take longer than `timeout_s`."""
    done, slots = Mirrored(), asyncio.Semaphore(PARALLEL)
    known = await asyncio.to_thread(_index, source) if source else {}

    async def provide(url: str, names: list[str]) -> None:
        async with slots:
            report(url, await _provide(done, cache, known, url, names, timeout_s))

    async with TaskGroup() as group:
        for url, names in wanted(tasks).items():
            group.create_task(provide(url, names))
    return done


async def _provide(
    done: Mirrored, cache: DownloadCache, known: dict[str, list[Path]], url: str, names: list[str], timeout_s: float
) -> str:
    if url in cache:
        done.present.append(url)
        return "present"
    try:
        path = await asyncio.to_thread(_copy_of, url, names, known)
        if path is not None:
            await asyncio.to_thread(cache.add, url, path)
            done.imported.append(url)
            return "imported"
        await cache.fetch(url, timeout=timeout_s)
    except DownloadError as error:
        done.failed[url] = str(error)
        return str(error)
    done.downloaded.append(url)
    return "downloaded"


def _copy_of(url: str, names: list[str], known: dict[str, list[Path]]) -> Path | None:
    """Return the file that a directory has for a URL, the best candidate's; None where it has none.

    Raises:
        DownloadError: it has files of different contents for it, and nobody knows which one is right.
    """
    candidates = dict.fromkeys(path for name in names for path in mirror_candidates(url, name))
    found = list(dict.fromkeys(path for candidate in candidates for path in known.get(normalize("NFC", candidate), ())))
    other = next((path for path in found[1:] if not filecmp.cmp(found[0], path, shallow=False)), None)
    if other is not None:
        raise DownloadError(
            f"the mirror holds two different files for {url}: {found[0]} and {other}; next step: delete the wrong one"
        )
    return found[0] if found else None


def _index(source: Path) -> dict[str, list[Path]]:
    """Files of a directory by their path in it; those of OSWorld's caches by their name alone, too."""
    found: dict[str, list[Path]] = {}
    for path in sorted(source.rglob("*")):
        if path.is_file():
            inside = normalize("NFC", path.relative_to(source).as_posix())
            name = normalize("NFC", path.name)
            for key in {inside, name} if _OSWORLDS_NAME.match(name) else {inside}:
                found.setdefault(key, []).append(path)
    return found
