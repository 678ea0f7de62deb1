"""The download cache: whole files only, whoever fills it, from the web or from a directory."""

from __future__ import annotations

import http.server
import multiprocessing
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dart_gym.core.errors import ConfigurationError
from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.tasks.requirements.mirror import mirror
from dart_gym.tasks.setup.download_cache import DownloadCache, DownloadError, mirror_candidates, osworld_cache_name
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/file.bin")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.path == "/cut":
            self.wfile.write(CONTENT[:1000])
        elif self.path == "/stuck":
            self.wfile.write(CONTENT[:1000])
            self.wfile.flush()
            self.server.released.wait(20)
        else:
            self.wfile.write(CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture
def web() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.asked, server.released = [], threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path) -> DownloadCache:
    return DownloadCache(tmp_path / "cache", hosts=frozenset({"127.0.0.1"}))


def partial_files(cache: DownloadCache) -> list[Path]:
    return list((cache.directory / "partial").glob("*"))


async def test_a_file_is_downloaded_once(web, cache):
    url = f"{web.url}/file.bin"
    assert url not in cache
    path = await cache.fetch(url)
    assert path.read_bytes() == CONTENT and path.stat().st_mode & 0o222 == 0
    assert await cache.fetch(url) == path == DownloadCache(cache.directory, offline=True).find(url)
    assert web.asked == ["/file.bin"] and partial_files(cache) == []


async def test_equal_contents_are_kept_once(web, cache):
    assert await cache.fetch(f"{web.url}/file.bin") == await cache.fetch(f"{web.url}/moved")
    assert len(list((cache.directory / "blobs").rglob("*"))) == 2  # one folder, one file


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/missing", "404"), ("/cut", "cannot download"), ("/stuck", "within 1 s")],
)
async def test_what_does_not_arrive_whole_is_an_error_and_never_a_hit(web, cache, path, reason, monkeypatch):
    monkeypatch.setattr("dart_gym.tasks.setup.download_cache.RETRY_S", 0.01)
    with pytest.raises(DownloadError, match=reason):
        await cache.fetch(web.url + path, timeout=1.0 if path == "/stuck" else 30.0)
    assert cache.find(web.url + path) is None and partial_files(cache) == []


async def test_a_broken_transfer_is_tried_again_and_a_refusal_is_not(web, cache, monkeypatch):
    monkeypatch.setattr("dart_gym.tasks.setup.download_cache.RETRY_S", 0.01)
    for path in ("/cut", "/missing"):
        with pytest.raises(DownloadError):
            await cache.fetch(web.url + path)
    assert web.asked == ["/cut"] * 3 + ["/missing"]


async def test_a_file_may_be_too_large(web, cache):
    small = replace(cache, max_bytes=1000)
    with pytest.raises(DownloadError, match="larger than 1000 bytes"):
        await small.fetch(f"{web.url}/file.bin")
    assert partial_files(cache) == []


async def test_a_full_disk_is_named(web, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dart_gym.tasks.setup.download_cache.os.fsync", full)
    with pytest.raises(DownloadError, match="No space left on device"):
        await cache.fetch(f"{web.url}/file.bin")
    assert partial_files(cache) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "/etc/passwd"])
async def test_only_the_web_is_fetched_from(cache, url):
    with pytest.raises(DownloadError, match="no http address"):
        await cache.fetch(url)


async def test_offline_only_the_cache_counts(web, cache):
    with pytest.raises(DownloadError, match="tasks mirror"):
        await DownloadCache(cache.directory, offline=True).fetch(f"{web.url}/file.bin")
    assert web.asked == []


def test_the_place_of_the_cache_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DART_GYM_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("DART_GYM_OFFLINE", "1")
    assert DownloadCache.default() == DownloadCache(tmp_path / "a", offline=True)
    monkeypatch.delenv("DART_GYM_CACHE")
    monkeypatch.setenv("DART_GYM_OFFLINE", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert DownloadCache.default() == DownloadCache(tmp_path / "b/dart-gym/downloads")


def test_a_truncated_blob_or_a_damaged_index_is_no_hit(cache, tmp_path):
    source = tmp_path / "s"
    source.write_bytes(b"content")
    blob = cache.add("http://x/s", source)
    assert "http://x/s" in cache
    blob.chmod(0o644)
    blob.write_bytes(b"con")
    assert "http://x/s" not in cache
    next((cache.directory / "urls").iterdir()).write_text("{")
    with pytest.raises(ConfigurationError, match="damaged.*delete it"):
        cache.find("http://x/s")


def _fill(directory: Path, source: Path, number: int, ready, found) -> None:
    cache = DownloadCache(directory)
    ready.wait()
    deadline = time.monotonic() + 20
    for i in range(20):
        if number:
            cache.add(f"http://x/{i}", source)
        else:  # looks all the time: what it finds must be whole
            while time.monotonic() < deadline and (path := cache.find(f"http://x/{i}")) is None:
                pass
            found.put(path is not None and path.read_bytes() == source.read_bytes())


@pytest.mark.process
def test_processes_fill_and_read_one_cache_at_the_same_time(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    context = multiprocessing.get_context("spawn")
    ready, found = context.Event(), context.Queue()
    arguments = [(tmp_path / "cache", source, number, ready, found) for number in range(3)]
    processes = [context.Process(target=_fill, args=each) for each in arguments]
    for process in processes:
        process.start()
    ready.set()
    assert all(found.get(timeout=60) for _ in range(20))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert partial_files(DownloadCache(tmp_path / "cache")) == []


HUB = "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main"


def _task(*urls: str):
    files = [{"url": url, "path": f"/home/user/{number}.bin"} for number, url in enumerate(urls)]
    return task_from_dict(
        {"id": "t", "instruction": "", "config": [{"type": "download", "parameters": {"files": files}}]}
    )


async def test_a_mirror_takes_from_a_copy_of_the_hub_from_osworlds_cache_and_from_the_web(web, cache, tmp_path):
    hub, named, direct = f"{HUB}/os/1/a.bin?download=true", "https://example.org/n", f"{web.url}/file.bin"
    source = tmp_path / "hub"
    for name, content in (("os/1/a.bin", b"a"), (f"task-7/{osworld_cache_name(named, '/home/user/1.bin')}", b"n")):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_bytes(content)
    tasks = [_task(hub, named, direct), _task(hub)]
    done = await mirror(tasks, cache, source)
    assert (sorted(done.imported), done.downloaded, done.failed) == (sorted([hub, named]), [direct], {})
    again = await mirror(tasks, DownloadCache(cache.directory, offline=True))
    assert sorted(again.present) == sorted([hub, named, direct])


@pytest.mark.parametrize("name", ["a.xlsx", "a.txt?download=true", "a%20b.png"])
async def test_a_page_to_sign_in_is_not_kept_as_the_file(cache, name):
    with stub(Protocol.HTTP, Situation.HTML) as web, pytest.raises(DownloadError, match="a web page"):
        await cache.fetch(f"http://127.0.0.1:{web.port}/{name}")


@pytest.mark.parametrize("name", ["a.html", "a", "", "a.php", "wiki/A.B"])
async def test_a_page_that_is_asked_for_is_kept(cache, name):
    with stub(Protocol.HTTP, Situation.HTML) as web:
        assert b"Sign in" in (await cache.fetch(f"http://127.0.0.1:{web.port}/{name}")).read_bytes()


async def test_a_mirror_says_what_it_lacks(web, cache, tmp_path):
    done = await mirror([_task(f"{web.url}/missing")], cache, tmp_path)
    assert list(done.failed) == [f"{web.url}/missing"] and "404" in done.failed[f"{web.url}/missing"]


def test_names_in_directories_cannot_lead_out_of_them():
    assert mirror_candidates(f"{HUB}/a/b.txt?download=true", "/x/b.txt")[0] == "a/b.txt"
    assert mirror_candidates(f"{HUB}/../../etc/passwd", "p") == [osworld_cache_name(f"{HUB}/../../etc/passwd", "p")]
    assert osworld_cache_name("http://a/b", "/home/user/b.txt") == "5cec48b3-c511-54f8-8bc5-5381031700d2_b.txt"
