"""A task names an address, the server goes there: to the public internet or where the operator said."""

import socket

import pytest

from dart_gym.core.errors import ConfigurationError
from dart_gym.tasks.setup.download_cache import DownloadCache, DownloadError
from dart_gym.tasks.setup.web_source import is_public
from tests.helpers.web_site import site

pytestmark = pytest.mark.security


@pytest.fixture
def service():
    """What runs beside the server, for nobody but this machine."""
    with site(lambda path: b"a secret") as server:
        yield server


def cache_in(tmp_path, *hosts, **options):
    return DownloadCache(tmp_path / "cache", hosts=frozenset(hosts), **options)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0.0.0.0", "2130706433", "127.1", "[::ffff:127.0.0.1]", "files.test"]
)
async def test_a_service_of_this_machine_is_not_fetched_from(host, service, tmp_path, monkeypatch):
    real = socket.getaddrinfo
    monkeypatch.setattr(  # a name of the attacker's, which resolves to what he likes
        socket,
        "getaddrinfo",
        lambda name, *rest, **more: real("127.0.0.1" if name == "files.test" else name, *rest, **more),
    )
    with pytest.raises(
        DownloadError, match="not on the public internet.*DART_GYM_FETCH_HOSTS=|no.*canonical IPv4 address"
    ):
        await cache_in(tmp_path).fetch(f"http://{host}:{service.server_port}/x")
    assert service.asked == []


@pytest.mark.parametrize("target", ["http://127.0.0.1:{port}/x", "http://localhost:{port}/x", "//127.0.0.1:{port}/x"])
async def test_no_redirect_leads_to_a_service_of_this_machine(target, service, tmp_path):
    with site(lambda path: target.format(port=service.server_port)) as outside:
        hosts = f"127.0.0.1:{outside.server_port}"  # stands for a host of the internet
        with pytest.raises(DownloadError, match="not on the public internet"):
            await cache_in(tmp_path, hosts).fetch(f"http://{hosts}/task-file")
        assert outside.asked == ["/task-file"] and service.asked == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/again"])
async def test_no_redirect_leads_off_the_web_or_on_for_ever(target, tmp_path):
    with site(lambda path: target) as outside:
        with pytest.raises(DownloadError, match="no http address|redirects more than"):
            await cache_in(tmp_path, "127.0.0.1").fetch(f"http://127.0.0.1:{outside.server_port}/x")
        assert len(outside.asked) <= 10


async def test_a_host_that_the_operator_named_is_fetched_from(service, tmp_path, monkeypatch):
    monkeypatch.setenv("DART_GYM_CACHE", str(tmp_path))
    monkeypatch.setenv("DART_GYM_FETCH_HOSTS", f"files.lan, 127.0.0.1:{service.server_port}")
    found = await DownloadCache.default().fetch(f"http://127.0.0.1:{service.server_port}/x")
    assert found.read_bytes() == b"a secret"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("10.1.2.3", False), ("172.16.0.1", False),
        ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False),
        ("2002:a00:1::", False),
        ("64:ff9b::a00:1", False), ("::", False), ("255.255.255.255", False), ("192.0.2.1", False),
    ],
)  # fmt: skip
def test_public_addresses_are_those_of_the_internet(address, public):
    assert is_public(address) is public


async def test_a_quota_bounds_all_files_together(tmp_path):
    with site(lambda path: path.encode() * 1000) as web:
        url = f"http://127.0.0.1:{web.server_port}"
        cache = cache_in(tmp_path, "127.0.0.1", quota_bytes=10_000)
        for name in ("/aaa", "/bbb"):
            await cache.fetch(url + name)
        with pytest.raises(DownloadError, match="does not fit.*delete what no task needs.*DART_GYM_CACHE_GB"):
            await cache.fetch(f"{url}/ccc")
        assert cache.find(f"{url}/ccc") is None
        assert sum(path.stat().st_size for path in (tmp_path / "cache/blobs").rglob("*") if path.is_file()) == 8000
        assert list((tmp_path / "cache/partial").iterdir()) == []


def test_a_quota_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("DART_GYM_CACHE_GB", "much")
    with pytest.raises(ConfigurationError, match="DART_GYM_CACHE_GB='much' is no number of gigabytes"):
        DownloadCache.default()
