"""Whatever a client or a page of the web sends, nobody gets what is not theirs."""

import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

import httpx
import pytest
import websockets
import yaml

from dart_agent.engines.base.engine import EngineError
from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.engines.remote.remote_engine import RemoteEngine
from dart_agent.policies.human_policy import HumanDesk
from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.access_tokens import TokenBook, token_line
from dart_gym.cluster.server.cluster_server import ClusterServer
from dart_gym.cluster.server.server_settings import ServerSettings
from dart_gym.cluster.wire.cluster_address import parse_address
from dart_gym.cluster.wire.local_tokens import find_local_token
from dart_gym.core.errors import ClusterError, ConfigurationError, DartGymError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.osworld_api.api_address import APIPolicy
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from dart_train.rollout.service.service_http import serving
from tests.dart_gym.cluster.serving import watch_proxy

pytestmark = pytest.mark.security
TCP = "ws://127.0.0.1:0"
PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},  # of a sandboxed frame
    {"Origin": "http://127.0.0.1:1"},
    {"Host": "rebound.example"},
]
"""What a browser says of pages of others."""


@pytest.fixture(autouse=True)
def own_runtime_directory(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


def server_of(**fields):
    return ClusterServer(ServerSettings(**{"listen": TCP, "desktops": 2, **fields}), FakeDesktop)


def web(url):
    return httpx.AsyncClient(base_url=url.replace("ws://", "http://"), trust_env=False)


async def refused(url, headers, path="/"):
    """Whether a websocket is refused, and with which HTTP status."""
    try:
        async with websockets.connect(url, additional_headers=headers, proxy=None, open_timeout=10):
            return 0
    except websockets.InvalidStatus as error:
        return error.response.status_code


class Engine:
    """An engine that would load weights from anywhere."""

    def __init__(self):
        self.loaded = []

    async def update_weights(self, path, version):
        self.loaded.append((path, version))


@pytest.fixture
async def stack():
    async with contextlib.AsyncExitStack() as stack:
        yield stack


# --- a token on loopback


async def test_a_server_on_loopback_wants_a_token_that_its_user_s_clients_find():
    async with server_of() as server:
        async with web(server.url) as stranger:
            for path in ("/metrics", "/watch/state", "/watch/frame/0"):
                assert (await stranger.get(path)).status_code == 401
            assert (await stranger.get("/healthz")).status_code == 200
        assert await refused(server.url, {}) == 401
        assert await refused(server.url, {"Authorization": "Bearer guessed"}) == 401
        async with ClusterClient(server.url).session() as session:  # without a word
            assert (await session.reset("fake/two-steps", seed=0)).terminal is None
        file = Path(os.environ["XDG_RUNTIME_DIR"], f"dart-gym-{os.getuid()}", "tokens", server.url.rpartition(":")[2])
        assert file.stat().st_mode & 0o777 == 0o600 and file.parent.parent.stat().st_mode & 0o77 == 0
        assert TokenBook.of_one(file.read_text()).find(find_local_token(parse_address(server.url)))
    assert not file.exists()


async def test_another_user_s_client_is_told_whose_the_server_is(monkeypatch, tmp_path):
    async with server_of() as server:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where the other user's files would lie
        with pytest.raises(ClusterError, match="no token was given.*clients of its own user"):
            await ClusterClient(server.url).status()


async def test_each_start_makes_a_token_anew():
    async with server_of() as first:
        port, token = first.url.rpartition(":")[2], find_local_token(parse_address(first.url))
    async with server_of(listen=f"ws://127.0.0.1:{port}") as second:
        assert find_local_token(parse_address(second.url)) != token
        assert await refused(second.url, {"Authorization": f"Bearer {token}"}) == 401


async def test_a_link_in_place_of_a_token_s_file_is_not_followed(tmp_path):
    async with server_of() as server:
        file = Path(os.environ["XDG_RUNTIME_DIR"], f"dart-gym-{os.getuid()}", "tokens", server.url.rpartition(":")[2])
        file.unlink()
        file.symlink_to("/etc/passwd")
        assert find_local_token(parse_address(server.url)) is None


async def test_a_token_that_cannot_be_left_is_said_and_nothing_listens(monkeypatch, tmp_path):
    directory = Path(os.environ["XDG_RUNTIME_DIR"], f"dart-gym-{os.getuid()}")
    directory.mkdir(mode=0o700)
    (directory / "tokens").write_text("a file")
    with pytest.raises(ConfigurationError, match="cannot leave this server's token.*--token-env"):
        await server_of().start()


async def test_open_is_said_and_for_loopback_alone(monkeypatch):
    async with server_of(open=True) as server, web(server.url) as anybody:
        assert (await anybody.get("/metrics")).status_code == 200
    for fields in ({"listen": "ws://0.0.0.0:0"}, {"token": "x"}, {"listen": "ws+unix:///tmp/x", "token": "x"}):
        with pytest.raises(ConfigurationError, match="--open is for"):
            server_of(open=True, **fields)


# --- pages of the web


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("open_to_all", [False, True])
async def test_no_page_reaches_a_cluster(page, open_to_all):
    async with server_of(open=open_to_all) as server, web(server.url) as browser:
        token = find_local_token(parse_address(server.url))
        shown = {**page, **({"Authorization": f"Bearer {token}"} if token else {})}
        for path in ("/metrics", "/watch/state", "/watch", "/watch/frame/0"):
            assert (await browser.get(path, headers=shown)).status_code == 403
        assert await refused_with_host(server.url, shown) == 403


async def refused_with_host(url, headers):
    """The status of an upgrade with any headers, Host too, which a client library would not send twice."""
    address = parse_address(url)
    lines = {"Host": f"127.0.0.1:{address.port}", "Upgrade": "websocket", "Connection": "Upgrade", **headers}
    lines |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    reader, writer = await asyncio.open_connection(address.host, address.port)
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"GET / HTTP/1.1\r\n{text}\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize("page", PAGES)
async def test_no_page_has_an_engine_load_weights(page):
    engine = Engine()
    async with EngineServer(engine).listening(TCP) as url:
        assert await refused_with_host(url, {}) == 401  # nor anybody without its user's token
        token = find_local_token(parse_address(url))
        assert await refused_with_host(url, {**page, "Authorization": f"Bearer {token}"}) == 403
        client = RemoteEngine(url)  # finds the token
        await client.update_weights("/weights/v1", 1)
        await client.close()
        with pytest.raises(EngineError, match="401"):
            await RemoteEngine(url, token="guessed").update_weights("/any/path", 2)
    assert engine.loaded == [("/weights/v1", 1)]


@pytest.mark.parametrize("page", PAGES)
async def test_no_page_reads_a_run_a_desktop_or_a_view(page, stack):
    async with serving("127.0.0.1:0", lambda: {"unavailable": {}}) as address, web(f"http://{address}") as browser:
        assert (await browser.get("/status")).status_code == 200
        for path in ("/status", "/metrics", "/healthz"):
            assert (await browser.get(path, headers=page)).status_code == 403
    desktop = FakeDesktop(DesktopSpec())
    await desktop.start()
    async with OSWorldAPI(desktop, open_to_all=True) as api, web(api.address.url) as browser:
        assert (await browser.get("/screenshot")).status_code == 200
        assert (await browser.get("/screenshot", headers=page)).status_code == 403
    async with (
        server_of() as server,
        watch_proxy(server.url) as proxy,
        web(proxy.url.partition("/watch")[0]) as browser,
    ):
        key = {"Authorization": f"Bearer {proxy.url.partition('token=')[2]}"}
        assert (await browser.get("/watch/state", headers=key)).status_code == 200
        assert (await browser.get("/watch/state", headers=key | page)).status_code == 403
    async with HumanDesk() as desk:
        base, _, secret = desk.player().url.partition("/watch/play/0#token=")
        browser = await stack.enter_async_context(web(base))
        sent = {"headers": {"Authorization": f"Bearer {secret}", **page}, "json": {"turn": 1, "actions": []}}
        assert (await browser.post("/watch/play/0/act", **sent)).status_code == 403
        sent["headers"] = {"Authorization": f"Bearer {secret}", "Origin": base}  # its own page
        assert (await browser.post("/watch/play/0/act", **sent)).status_code != 403


# --- tenants


def tokens_file(tmp_path):
    lines = [token_line("alice", "alice-token"), token_line("bob", "bob-token")]
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump({"tokens": [yaml.safe_load(line)[0] for line in lines]}))
    return path


async def test_a_desktop_that_was_used_is_handed_to_nobody_else_and_its_api_ends_with_the_lease(tmp_path):
    policy = APIPolicy()
    async with server_of(tokens=tokens_file(tmp_path), desktops=1, osworld_api=policy) as server:
        alice, bob = (ClusterClient(server.url, f"{name}-token") for name in ("alice", "bob"))

        async def lease(client):
            async with client.session() as session:
                api = (await session.reset("fake/two-steps", seed=0)).info["osworld_api"]
                assert (await screenshot(api)) == 200
                return api

        first = await lease(alice)
        boots = (await alice.status())["counters"]["boots"]
        second = await lease(alice)  # the same desktop, under another address
        assert (await alice.status())["counters"]["boots"] == boots
        third = await lease(bob)
        assert (await bob.status())["counters"]["boots"] > boots
        assert len({api["token"] for api in (first, second, third)}) == 3
        async with bob.session() as session:
            now = (await session.reset("fake/two-steps", seed=0)).info["osworld_api"]
            for old in (first, second, third):
                assert await screenshot(old) in (None, 401)
                assert await screenshot({**now, "token": old["token"]}) == 401


async def screenshot(api):
    """The status of a request for a desktop's screen; None where nobody listens."""
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            headers = {"Authorization": f"Bearer {api['token']}"}
            return (await client.get(f"{api['url']}/screenshot", headers=headers)).status_code
        except httpx.TransportError:
            return None


async def test_a_status_shows_an_owner_its_own(tmp_path):
    async with server_of(tokens=tokens_file(tmp_path)) as server:
        alice, bob = (ClusterClient(server.url, f"{name}-token") for name in ("alice", "bob"))
        async with alice.session() as hers, bob.session() as his:
            await hers.reset("fake/two-steps", seed=0)
            await his.reset("fake/two-steps", seed=0)
            seen = await his.status()
            assert sorted(desktop["task"] for desktop in seen["desktops"]) == ["", "fake/two-steps"]
            assert "pid" not in seen
            async with web(server.url) as page:
                state = await page.get("/watch/state", headers={"Authorization": "Bearer bob-token"})
            assert sorted(desktop["task"] for desktop in json.loads(state.text)["desktops"]) == ["", "fake/two-steps"]


# --- what clients send


@pytest.mark.parametrize("name", ["x" * 4_000_000, "fake/" + "x" * 4_000_000, "x/" * 2_000_000, "é" * 2_000_000])
async def test_a_task_of_an_endless_name_stalls_nobody(name):
    async with server_of() as server:
        client = ClusterClient(server.url)
        async with client.session() as session, client.session() as other:
            await other.reset("fake/two-steps", seed=0)
            with pytest.raises(DartGymError, match="unknown task"):
                await session.reset("fake/none", seed=0)  # which imports all suites, once
            slow = asyncio.ensure_future(longest_wait(other))
            for task in (name, {"id": name, "instruction": ""}):
                with pytest.raises(DartGymError) as caught:
                    await session.reset(task, seed=0)
                assert len(str(caught.value)) < 10_000
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            started = time.perf_counter()
            await other.status()
            assert time.perf_counter() - started < 0.3


async def longest_wait(session):
    while True:
        started = time.perf_counter()
        await session.status()
        assert time.perf_counter() - started < 1.5  # half a second and more on a busy machine
