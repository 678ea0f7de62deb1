"""Steps about the browser: chrome_open_tabs, chrome_close_tabs, update_browse_history.

The tasks' browser listens for DevTools on port 1337 and `socat` leads 9222, which OSWorld uses, there.
"""

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dart_gym.core.errors import DesktopError, TaskError
from dart_gym.desktops.applications.devtools import Browser, DevToolsError, PageLoadError
from dart_gym.tasks.setup.live_web import network_fails
from dart_gym.tasks.setup.setup_step import HOME, POLL_S, StepError, Surroundings, UnmetError
from dart_gym.tasks.setup.step_patience import StepLimit

HISTORY_URL = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/"
    "chrome/44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)

PORTS = (9222, 1337)
BROWSER_TIMEOUT_S = 60.0
PAGE_TIMEOUT_S = 60.0
HISTORY_PATH = f"{HOME}/.config/google-chrome/Default/History"
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)  # Chrome counts microseconds from here
_TRANSITION = 805306368  # a link that was followed to its end


async def open_tabs(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Open pages in new tabs, in order, and close the tab that was there first.

    Raises:
        StepError: no browser answers, or a page cannot be loaded. (OSWorld overlooks the latter: the task then starts
            from an error page.) In an evaluation, where the agent may have replaced the browser, a page that this
            machine reaches is the desktop's to load.
    """
    urls = _urls(parameters, "urls_to_open")
    browser = await _browser(where)
    with _answers(where):
        existing = [page["id"] for page in await browser.pages()]
    for number, url in enumerate(urls):
        with _answers(where):
            try:
                await browser.open(url, timeout=PAGE_TIMEOUT_S)
            except DevToolsError as error:
                if where.evaluating:  # only a page may fail by the network
                    if not (isinstance(error, PageLoadError) and await network_fails(url, where.downloads.hosts)):
                        raise
                raise StepError(f"tab {number + 1} of {len(urls)}: {error}") from error
            if number == 0 and existing:
                await browser.close(existing[-1])  # DevTools lists the newest page first


async def close_tabs(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Close the first tab of each address; one that is not open is no error, as in OSWorld."""
    browser = await _browser(where)
    for url in _urls(parameters, "urls_to_close"):
        with _answers(where):
            for page in reversed(await browser.pages()):
                if same_page(page["url"], url):
                    await browser.close(page["id"])
                    break


@contextlib.contextmanager
def _answers(where: Surroundings) -> Iterator[None]:
    """In an evaluation, a browser that does not answer, or not as one, is what the agent has made of it."""
    try:
        yield
    except DesktopError as error:
        if not where.evaluating:
            raise
        raise UnmetError(str(error)) from error


def _urls(parameters: dict[str, Any], name: str) -> list[str]:
    urls = parameters[name]
    if not isinstance(urls, list) or not all(isinstance(url, str) and url for url in urls):
        raise StepError(f"{name!r} must be a list of addresses, got {urls!r}")
    return [url if "://" in url or ":" in url.split("/", 1)[0] else f"http://{url}" for url in urls]


def same_page(first: str, second: str) -> bool:
    """Return whether two addresses name the same page, whatever their scheme, "www." and last slash. Pure."""

    def plain(url: str) -> tuple[str, str, str]:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        return (parts.hostname or "").removeprefix("www."), parts.path.rstrip("/"), parts.query

    return plain(first) == plain(second)


async def _browser(where: Surroundings) -> Browser:
    """The browser that the steps before started, when it answers."""
    limit, reason = StepLimit(where, BROWSER_TIMEOUT_S), "it has no page"
    while True:
        for port in PORTS:
            try:
                browser = Browser(await where.desktop.open_port(port), port)
                if await browser.pages():
                    return browser
            except DesktopError as error:
                reason = str(error)
        if await limit.has_passed():
            raise UnmetError(
                f"no browser answers on the ports {PORTS[0]} and {PORTS[1]} after {BROWSER_TIMEOUT_S:g} s ({reason}): "
                "a step before this one must start google-chrome with --remote-debugging-port=1337"
            )
        await asyncio.sleep(POLL_S)


async def update_history(where: Surroundings, parameters: dict[str, Any]) -> None:
    """Write visits into the browser's history; before it starts."""
    visits = parameters["history"]
    if not isinstance(visits, list):
        raise StepError(f"'history' must be a list, got {visits!r}")
    try:
        template = await where.downloads.fetch(HISTORY_URL)
    except TaskError as error:
        raise StepError(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="dart-history-") as directory:
        path = Path(directory) / "History"
        path.write_bytes(template.read_bytes())
        try:
            write_visits(path, visits, datetime.now(UTC))
        except sqlite3.Error as error:
            raise StepError(f"the history's database: {error}") from error
        await where.desktop.write_file(HISTORY_PATH, path.read_bytes())


def write_visits(database: Path, visits: Sequence[dict[str, Any]], now: datetime) -> None:
    """Add visits (`{"url", "title", "visit_time_from_now_in_seconds"}`) to a database of Chrome's."""
    connection = sqlite3.connect(database)
    try:
        with connection:
            for visit in visits:
                moment = now - timedelta(seconds=float(visit["visit_time_from_now_in_seconds"]))
                stamp = (moment - _EPOCH) // timedelta(microseconds=1)
                cursor = connection.execute(
                    "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) "
                    "VALUES (?, ?, 1, 0, ?, 0)",
                    (visit["url"], visit["title"], stamp),
                )
                connection.execute(
                    "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                    "VALUES (?, ?, 0, ?, 0, 0)",
                    (cursor.lastrowid, stamp, _TRANSITION),
                )
    finally:
        connection.close()
