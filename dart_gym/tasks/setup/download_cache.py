"""The download cache: files of the web that tasks need, stored once by content, found by URL.

    DIRECTORY/urls/<sha256 of the URL>.json     {"url", "sha256", "size"}
    DIRECTORY/blobs/<2 digits>/<sha256>         the content, read-only
    DIRECTORY/partial/                          what is being written

Invariants:
    - A file is written under a temporary name and renamed when it is complete, the index entry after it: a partial
      file is never found, whatever dies in between.
    - Any number of processes may fill one cache at the same time.
    - Nothing here is ever changed by an episode: a desktop gets copies.
    - What tasks fetch is bounded, file by file and together; and it comes from the public internet, or from hosts that
      the operator named (`web_source`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import mimetypes
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

from dart_gym.core.errors import ConfigurationError, TaskError
from dart_gym.tasks.setup.web_source import RefusedError, allowed_hosts, opened
from dart_gym.utils.durable_files import make_directories, rename, write_file
from dart_gym.utils.waits import waiting_for

CACHE_VARIABLE = "DART_GYM_CACHE"
OFFLINE_VARIABLE = "DART_GYM_OFFLINE"
QUOTA_VARIABLE = "DART_GYM_CACHE_GB"
MAX_BYTES = 2 << 30
QUOTA_BYTES = 64 << 30
DOWNLOAD_TIMEOUT_S = 300.0
_TRIES = 3
RETRY_S = 1.0
HTML = "text/html"
_TYPES = mimetypes.MimeTypes()  # by names of files, the same on every machine
for _suffix in ("docx", "xlsx", "pptx", "odt", "ods", "odp", "odg", "xcf", "epub", "7z", "gz", "webp"):
    _TYPES.add_type(f"application/x-{_suffix}", f".{_suffix}")
_CHUNK = 1 << 20
_HUB_MARK = re.compile("/(?:resolve|raw|blob)/[^/]+/")


class DownloadError(TaskError):
    """A file that a task needs cannot be had."""


@dataclass(frozen=True, slots=True)
class DownloadCache:
    """A cache in a directory, which is made when something is stored.

    Attributes:
        offline: whether `fetch` may only give what is there.
        max_bytes: no file may be larger.
        quota_bytes: nothing more is stored where all files together would be larger.
        hosts: hosts that may be fetched from though they are not on the public internet.
    """

    directory: Path
    offline: bool = False
    max_bytes: int = MAX_BYTES
    quota_bytes: int = QUOTA_BYTES
    hosts: frozenset[str] = frozenset()

    @classmethod
    def default(cls) -> DownloadCache:
        """The cache of this user: `DART_GYM_CACHE`, else `dart-gym` where caches belong.

        `DART_GYM_OFFLINE=1`, `DART_GYM_CACHE_GB=64` and `DART_GYM_FETCH_HOSTS=a,b:80` set its other fields.

        Raises:
            ConfigurationError: a variable has no value that it may have.
        """
        named = os.environ.get(CACHE_VARIABLE)
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        offline = os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")
        directory = Path(named) if named else caches / "dart-gym" / "downloads"
        return cls(directory, offline, quota_bytes=_quota(), hosts=allowed_hosts())

    def find(self, url: str) -> Path | None:
        """Path of the content of a URL; None where the cache does not have it whole."""
        try:
            entry = json.loads(self._index(url).read_text(encoding="utf-8"))
            blob = self._blob(entry["sha256"])
            return blob if blob.stat().st_size == entry["size"] else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{self._index(url)} is damaged ({error}); next step: delete it") from error

    def __contains__(self, url: object) -> bool:
        return isinstance(url, str) and self.find(url) is not None

    async def fetch(self, url: str, *, timeout: float = DOWNLOAD_TIMEOUT_S) -> Path:
        """Path of a URL's content, downloaded if need be. Raises `DownloadError` with URL and cause."""
        found = self.find(url)
        if found is not None:
            return found
        if not url.startswith(("http://", "https://")):
            raise DownloadError(f"{url!r} is no http address")
        if self.offline:
            raise DownloadError(
                f"{url} is not in the download cache {self.directory}, and {OFFLINE_VARIABLE} forbids to fetch it; "
                "next step: `dart-gym tasks mirror`"
            )
        import aiohttp  # takes a process half a second, and most fetch nothing

        try:
            with waiting_for(f"the file {url}", timeout):
                async with asyncio.timeout(timeout):
                    return await self._download(url)
        except TimeoutError:
            raise DownloadError(f"{url} did not arrive within {timeout:g} s") from None
        except RefusedError as error:
            raise DownloadError(f"cannot download {url}: {error}") from None
        except aiohttp.ClientResponseError as error:
            raise DownloadError(f"{url}: the server says {error.status}") from error
        except (aiohttp.ClientError, ValueError) as error:  # ValueError: no URL
            raise DownloadError(f"cannot download {url}: {type(error).__name__}: {error}") from error
        except OSError as error:
            raise DownloadError(f"cannot keep {url} in {self.directory}: {error.strerror or error}") from error

    async def _download(self, url: str) -> Path:
        import aiohttp

        for attempt in range(1, _TRIES + 1):  # a download may be repeated: it changes nothing
            try:
                return await self._download_once(url)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError):
                if attempt == _TRIES:
                    raise
                await asyncio.sleep(RETRY_S * attempt)  # backing off between attempts
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _download_once(self, url: str) -> Path:
        import aiohttp

        room = await asyncio.to_thread(self._room)
        async with opened(url, self.hosts) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise aiohttp.ClientPayloadError("it comes packed, though it was asked for as it is")
            named, _ = _TYPES.guess_type(urlsplit(url).path)
            if response.content_type == HTML and named not in (None, HTML):
                raise DownloadError(f"{url}: the server sent a web page, such as one to sign in, instead of the file")
            with self._writing() as (file, digest):
                size = 0
                async for chunk in response.content.iter_chunked(_CHUNK):
                    size += len(chunk)
                    self._check_size(url, size, room)
                    digest.update(chunk)
                    file.write(chunk)
                return await asyncio.to_thread(self._keep, url, file, digest.hexdigest(), size)

    def add(self, url: str, source: Path) -> Path:
        """Store a copy of a file as a URL's content.

        Raises:
            DownloadError: if the file is unreadable or too large.
        """
        try:
            with source.open("rb") as reader, self._writing() as (file, digest):
                size, room = 0, self._room()
                while chunk := reader.read(_CHUNK):
                    size += len(chunk)
                    self._check_size(url, size, room)
                    digest.update(chunk)
                    file.write(chunk)
                return self._keep(url, file, digest.hexdigest(), size)
        except OSError as error:
            raise DownloadError(f"cannot keep {source} in {self.directory}: {error.strerror or error}") from error

    def _check_size(self, url: str, size: int, room: int) -> None:
        if size > self.max_bytes:
            raise DownloadError(f"{url} is larger than {self.max_bytes} bytes")
        if size > room:
            raise DownloadError(
                f"{url} does not fit into the download cache {self.directory} of {self.quota_bytes / 1e9:g} GB; next "
                f"step: delete what no task needs from it, or set {QUOTA_VARIABLE}"
            )

    def _room(self) -> int:
        """Bytes that may still be stored; what is being written counts as stored."""
        used = 0
        for folder in ("blobs", "partial"):
            for parent, _, names in os.walk(self.directory / folder):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):  # renamed or given up meanwhile
                        used += os.stat(os.path.join(parent, name)).st_size
        return max(0, self.quota_bytes - used)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[IO[bytes], hashlib._Hash]]:
        partial = self.directory / "partial"
        make_directories(partial)
        file = tempfile.NamedTemporaryFile(dir=partial, delete=False)
        try:
            with file:
                yield file, hashlib.sha256()
        finally:
            Path(file.name).unlink(missing_ok=True)  # renamed away if all went well

    def _keep(self, url: str, file: IO[bytes], sha256: str, size: int) -> Path:
        file.flush()
        self._check_size(url, size, self._room() + size)  # others may have been written at the same time
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())
        blob = self._blob(sha256)
        make_directories(blob.parent)
        rename(Path(file.name), blob)
        target = self._index(url)
        make_directories(target.parent)
        write_file(target, json.dumps({"url": url, "sha256": sha256, "size": size}))
        return blob

    def _index(self, url: str) -> Path:
        return self.directory / "urls" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"

    def _blob(self, sha256: str) -> Path:
        return self.directory / "blobs" / sha256[:2] / sha256

    def export(self, url: str, target: Path) -> bool:
        """Copy the content of a URL to a path; False where the cache does not have it."""
        found = self.find(url)
        if found is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, target)
        return found is not None


def _quota() -> int:
    text = os.environ.get(QUOTA_VARIABLE, "")
    try:
        return int(float(text) * 1e9) if text else QUOTA_BYTES
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{QUOTA_VARIABLE}={text!r} is no number of gigabytes; write one such as 64") from None


def host_of(url: str) -> str:
    """Return the host of an address, the address itself where it has none. Pure."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url


def osworld_cache_name(url: str, name: str) -> str:
    """Return what OSWorld's own cache calls a file of the set-up: `uuid5(URL)_basename`. Pure."""
    return f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{os.path.basename(name)}"


def mirror_candidates(url: str, name: str) -> list[str]:
    """Where a directory of hub files, or a cache of OSWorld, may hold a URL's content; best first. Pure.

    A copy of a hub may have a file under its name or under the name as it stands in the URL, with percent escapes, with
    a query, and in either form of Unicode's accents.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # no address: nothing but its hash names it
        return [osworld_cache_name(url, name)]
    paths = [f"{parts.netloc}{parts.path}"]  # as `wget -x` names files
    if (match := _HUB_MARK.search(parts.path)) is not None:
        paths.insert(0, parts.path[match.end() :])
    asked = [path + end for path in paths for end in dict.fromkeys(("", f"?{parts.query}" if parts.query else ""))]
    named = [*(unquote(path) for path in asked), *asked, osworld_cache_name(url, name)]
    forms = dict.fromkeys(normalize(form, path) for path in named for form in ("NFC", "NFD"))
    return [path for path in forms if ".." not in path.split("/") and not path.startswith("/")]
