"""Tasks of imported suites in action: OSWorld's format, with a bundle of files, perhaps scored by a program of its own.

Invariants:
    - A task whose bundle needs what is not here is refused by name before anything of it runs.
    - Programs of a bundle run inside the desktop (set-up) or in the evaluator's sandbox (reward), never on this side.
"""

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.core.actions import Action
from dart_gym.core.errors import TaskError
from dart_gym.core.outcomes import Evaluation, TerminalState
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.sites.site_catalog import find_site
from dart_gym.tasks.catalog.scenario import Prepared
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.catalog.task_index import TaskIndex
from dart_gym.tasks.evaluation.foreign_reward import SITES_URL, is_foreign, run_reward
from dart_gym.tasks.osworld.osworld_scenario import OSWorldScenario
from dart_gym.tasks.setup.download_cache import DownloadCache, DownloadError


@dataclass(frozen=True, slots=True)
class _BundleCache(DownloadCache):
    """The download cache, and the files of a bundle under "./"."""

    bundle: Path = Path()

    async def fetch(self, url: str, **options: Any) -> Path:
        if not url.startswith("./"):
            return await DownloadCache.fetch(self, url, **options)
        path = self.bundle / url
        if ".." in path.parts or not path.is_file():
            raise DownloadError(f"the bundle has no file {url!r}")
        return path


def with_addresses(data: bytes, sites: dict[str, str], *, scored: bool) -> bytes:
    """A file with the addresses of mock sites, where it names one of them by a placeholder (which ends in HOST or URL).

    `scored`: it is the program that scores, which finds them in its sandbox.
    """
    for placeholder, site in sites.items():
        if (word := placeholder.encode()) in data:
            url = f"{SITES_URL}/{site}" if scored else find_site(site).url
            data = data.replace(word, (url.partition("://")[2] if "_HOST_" in placeholder else url).encode())
    return data


class ImportedScenario(OSWorldScenario):
    """One episode of an imported task."""

    def __init__(self) -> None:
        super().__init__()
        self._unpacked: tempfile.TemporaryDirectory[str] | None = None

    async def prepare(self, desktop: Desktop, task: Task, seed: int) -> Prepared:
        """See `OSWorldScenario`; the bundle's files are available.

        Raises:
            TaskError: if the task needs something that is missing here.
        """
        await self.close()
        suite, _, name = task.id.partition("/")
        index = TaskIndex(suite)
        if any(needs := [row[0] for row in index.rows("SELECT needs FROM tasks WHERE name = ?", (name,))]):
            raise TaskError(f"task {task.id} cannot run here: {needs[0]}")
        if "bundle" in (task.raw.get("dart") or {}):
            self._unpacked = tempfile.TemporaryDirectory(prefix="dart-bundle-")
            folder, own = Path(self._unpacked.name), DownloadCache.default()
            sites = task.raw["dart"].get("addresses") or {}
            scored = str(task.evaluator.get("url", "")).removeprefix("./")
            for path, data in index.files(name):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(with_addresses(data, sites, scored=path == scored))
            known = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
            self._downloads = _BundleCache(**known, bundle=folder)
        try:
            return await super().prepare(desktop, task, seed)
        except TaskError as error:
            raise TaskError(f"task {task.id}: {error}") from error

    async def evaluate(self, desktop: Desktop, terminal: TerminalState, actions: list[Action]) -> Evaluation:
        """Score by the bundle's program where it has one, else as OSWorld does."""
        if self._unpacked is None or not is_foreign(self.evaluator):
            return await super().evaluate(desktop, terminal, actions)
        return await run_reward(desktop, self.evaluator, Path(self._unpacked.name))

    async def close(self) -> None:
        """Remove the copy of the bundle."""
        if self._unpacked is not None:
            self._unpacked.cleanup()
        self._downloads = self._unpacked = None
