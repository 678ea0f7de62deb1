"""Files of a mirror are found under whatever names copies of a hub give them; two different ones are refused."""

from __future__ import annotations

import unicodedata
from urllib.parse import quote

import pytest

from dart_gym.tasks.catalog.registry import task_from_dict
from dart_gym.tasks.requirements.mirror import mirror
from dart_gym.tasks.setup.download_cache import DownloadCache, osworld_cache_name

HUB = "https://huggingface.co/datasets/x/resolve/main"


def task(*urls: str):
    files = [{"url": url, "path": "/home/user/My file.bin"} for url in urls]
    return task_from_dict(
        {"id": "t", "instruction": "", "config": [{"type": "download", "parameters": {"files": files}}]}
    )


async def fill(tmp_path, files: dict[str, str], *urls: str):
    """Mirror URLs from a directory with these files; what became of them, and the cache."""
    source, cache = tmp_path / "source", DownloadCache(tmp_path / "cache", offline=True)
    for name, content in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    source.mkdir(exist_ok=True)
    return await mirror([task(*urls)], cache, source), cache


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"{HUB}/os/My%20file.txt", "os/My file.txt"),
        (f"{HUB}/os/My%20file.txt", "os/My%20file.txt"),
        (f"{HUB}/os/My file.txt", "os/My file.txt"),
        (f"{HUB}/os/a+b.txt", "os/a+b.txt"),
        (f"{HUB}/os/a%2Bb.txt", "os/a+b.txt"),
        (f"{HUB}/os/100%25.txt", "os/100%.txt"),
        (f"{HUB}/os/a%23b%3Fc.txt", "os/a#b?c.txt"),
        (f"{HUB}/os/{quote('é中.txt')}", "os/é中.txt"),
        (f"{HUB}/os/é.txt", "os/" + unicodedata.normalize("NFD", "é.txt")),
        (f"{HUB}/os/" + quote(unicodedata.normalize("NFD", "é.txt")), "os/é.txt"),
        (f"{HUB}/os/a.txt?download=true", "os/a.txt"),
        (f"{HUB}/os/a.txt?download=true", "os/a.txt?download=true"),
        (f"{HUB}/os/a.txt#part", "os/a.txt"),
        (f"{HUB}/os/a%2Fb.txt", "os/a/b.txt"),
        ("https://huggingface.co/datasets/x/resolve/0a1b2c/os/a.txt", "os/a.txt"),
        ("https://raw.host/files/my%20a.txt", "raw.host/files/my a.txt"),
        ("https://h.co/q?id=3", "h.co/q?id=3"),
        (f"{HUB}/os/x%20y.txt", osworld_cache_name(f"{HUB}/os/x%20y.txt", "My file.bin")),
        (f"{HUB}/os/x%20y.txt", "deep/er/" + osworld_cache_name(f"{HUB}/os/x%20y.txt", "My file.bin")),
    ],
)
async def test_a_file_is_found(tmp_path, url, name):
    done, cache = await fill(tmp_path, {name: "content"}, url)
    assert (done.imported, done.failed) == ([url], {}) and cache.find(url).read_text() == "content"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"{HUB}/os/a.txt", "chrome/a.txt"),
        (f"{HUB}/a.txt", "chrome/a.txt"),
        (f"{HUB}/../secret.txt", "secret.txt"),
        (f"{HUB}/%2e%2e/secret.txt", "secret.txt"),
        (f"{HUB}/os/a+b.txt", "os/a b.txt"),
        (f"{HUB}/os/A.txt", "os/a.txt"),
    ],
)
async def test_another_file_is_not_taken_for_it(tmp_path, url, name):
    done, _ = await fill(tmp_path, {name: "content"}, url)
    assert list(done.failed) == [url] and not done.imported


async def test_two_different_files_for_one_url_are_refused_and_both_are_named(tmp_path):
    url, other = f"{HUB}/os/a%20b.txt", f"{HUB}/os/c.txt"
    files = {"os/a b.txt": "one", "os/a%20b.txt": "two", "os/c.txt": "three"}
    done, cache = await fill(tmp_path, files, url, other)
    assert done.imported == [other] and url not in cache
    assert "a b.txt" in done.failed[url] and "a%20b.txt" in done.failed[url] and url in done.failed[url]


async def test_equal_copies_are_no_contradiction(tmp_path):
    url = f"{HUB}/os/a%20b.txt"
    name = osworld_cache_name(url, "My file.bin")
    done, cache = await fill(tmp_path, {"os/a b.txt": "one", f"x/{name}": "one", f"y/{name}": "one"}, url)
    assert done.imported == [url] and cache.find(url).read_text() == "one"


async def test_different_copies_in_caches_of_osworld_are_refused(tmp_path):
    url = f"{HUB}/os/a.txt"
    name = osworld_cache_name(url, "My file.bin")
    done, _ = await fill(tmp_path, {f"x/{name}": "one", f"y/{name}": "two"}, url)
    assert "x/" in done.failed[url] and "y/" in done.failed[url]
