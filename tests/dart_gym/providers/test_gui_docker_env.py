"""`integrations/gui_docker_env`, installed and found by its entry point: machines of a GUI-Docker-Env cluster.

Quotas, slow starts, lost replies, and no machine left running.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest
from gui_docker_env_server import GuiDockerEnvServer

from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.providers.provider import opened
from dart_gym.providers.provider_registry import PROVIDERS, make_provider
from tests.helpers.packages import INTEGRATIONS, installed

TOKEN = "a-secret-token"
pytestmark = pytest.mark.process  # pip installs the package


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory):
    """Where the package lies, as pip installs it."""
    with installed(INTEGRATIONS / "gui_docker_env", tmp_path_factory.mktemp("gui_docker_env")) as site:
        yield site


@pytest.fixture
def replies() -> ModuleType:
    """What the package understands of a server's replies."""
    import dart_gym_gui_docker_env_replies

    return dart_gym_gui_docker_env_replies


@pytest.fixture
async def cluster(start_machine):
    async with GuiDockerEnvServer(start_machine, {TOKEN: 1}) as server:
        yield server


@pytest.fixture
def provider_of(monkeypatch):
    monkeypatch.setenv("OSWORLD_TOKEN", TOKEN)

    def make(*servers, **options):
        monkeypatch.setenv("OSWORLD_BASE_URL", ",".join(server.url for server in servers))
        given = {"start_timeout_s": 20, "search_period_s": 0.02, **options}
        provider = make_provider("gui-docker-env", given)
        provider.longest_start_s = 0.0  # a test's own timeout holds
        return provider

    return make


# --- the package


def test_its_entry_point_gives_the_provider_its_name(site):
    assert PROVIDERS.describe()["gui-docker-env"] == "package dart-gym-gui-docker-env"
    kind = PROVIDERS.get("gui-docker-env")
    assert kind.name == "gui-docker-env" and Path(sys.modules[kind.__module__].__file__).is_relative_to(site)


def test_it_needs_an_address_and_a_token(monkeypatch):
    monkeypatch.delenv("OSWORLD_TOKEN", raising=False)
    monkeypatch.delenv("OSWORLD_BASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="export it as OSWORLD_TOKEN"):
        make_provider("gui-docker-env", {"base_url": "http://host:50003"})
    monkeypatch.setenv("OSWORLD_TOKEN", "secret")
    with pytest.raises(ConfigurationError, match="OSWORLD_BASE_URL"):
        make_provider("gui-docker-env")
    with pytest.raises(ConfigurationError, match="http://host:50003"):
        make_provider("gui-docker-env", {"base_url": "ftp://host"})


def test_it_leaves_drawn_desktops_and_named_machines_alone(provider_of):
    provider = provider_of(base_url="http://127.0.0.1:1")
    assert isinstance(provider.desktop(DesktopSpec(kind="fake")), FakeDesktop)
    assert provider.desktop(DesktopSpec(kind="osworld", url="http://127.0.0.1:2")).spec.url == "http://127.0.0.1:2"


# --- replies, as values


@pytest.mark.parametrize(
    ("status", "text", "meaning"),
    [
        (
            200,
            '{"code": 0, "data": {"emulator_id": "e", "server_port": 1, "chromium_port": 2, "vlc_port": 3}}',
            ("Started", "e", 1, 2, 3),
        ),
        (429, '{"message": "Token quota exceeded"}', ("Full", 1.0)),
        (401, '{"message": "Token required"}', ("Refused", "status 401")),
        (403, '{"message": "Unknown token \'a-secret-token\'"}', ("Refused", "status 403")),
        (500, '{"message": "no KVM"}', ("Failed", "status 500: 'no KVM'")),
        (502, "<html>bad gateway", ("Failed", "status 502: '<html>bad gateway'")),
        (200, "[]", ("Failed", "status 200: '[]'")),
        (200, '{"code": 0, "message": "well"}', ("Failed", "its reply names no machine: 'well'")),
        (
            200,
            '{"code": 0, "data": {"emulator_id": "e"}, "message": "m"}',
            ("Failed", "its reply names no machine: 'm'"),
        ),
    ],
)
def test_what_a_reply_means(replies, status, text, meaning):
    kind, *values = meaning
    assert replies.read_start(status, text, None, 0) == getattr(replies, kind)(*values)


@pytest.mark.parametrize(
    ("header", "attempt", "seconds"),
    [
        ("7", 0, 7.0),
        ("0", 0, 0.1),
        (None, 0, 1.0),
        (None, 3, 8.0),
        (None, 99, 15.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 0, 30.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0, 0.1),
        ("soon", 1, 2.0),
    ],
)
def test_how_long_a_full_server_is_left_alone(replies, header, attempt, seconds):
    assert replies.wait_seconds(header, attempt, datetime(2015, 10, 21, 7, 28, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("reply", "free"),
    [({TOKEN: {"current": 1, "limit": 4}}, 3), ({}, -1), ([], -1), ({TOKEN: {"limit": None, "current": 0}}, -1)],
)
def test_free_places_of_a_token(replies, reply, free):
    assert replies.free_places(reply, TOKEN) == free


# --- a real server


async def test_a_desktop_is_a_machine_for_as_long_as_it_lives(cluster, provider_of, osworld_spec):
    async with opened(provider_of(cluster)) as provider:
        desktop = provider.desktop(osworld_spec)
        await desktop.start()
        assert (await desktop.screenshot()).shape == (240, 320, 3)
        assert len(cluster.emulators) == 1
        await desktop.stop()
        assert not cluster.emulators


async def test_who_is_over_the_quota_waits_until_a_machine_is_given_back(cluster, provider_of, osworld_spec):
    cluster.retry_after = "3600"
    async with opened(provider_of(cluster)) as provider:
        first, second = provider.desktop(osworld_spec), provider.desktop(osworld_spec)
        await first.start()
        waiting = asyncio.create_task(second.start(timeout=30))
        while cluster.starts < 2:
            await asyncio.sleep(0.01)
        await first.stop()
        await asyncio.wait_for(waiting, 10)  # without waiting for the hour that the server said
        assert len(cluster.emulators) == 1
        await second.stop()


async def test_a_full_server_is_asked_again_after_the_time_that_it_says(cluster, provider_of, osworld_spec, until):
    cluster.tokens[TOKEN], cluster.retry_after = 0, "0"
    async with opened(provider_of(cluster)) as provider:
        desktop = provider.desktop(osworld_spec)
        waiting = asyncio.create_task(desktop.start(timeout=30))
        await until(lambda: cluster.starts >= 2)
        cluster.tokens[TOKEN] = 1  # somebody else's machine has ended
        await asyncio.wait_for(waiting, 10)
        await desktop.stop()


async def test_a_quota_that_stays_full_is_a_typed_error(cluster, provider_of, osworld_spec):
    cluster.tokens[TOKEN] = 0
    async with opened(provider_of(cluster)) as provider:
        with pytest.raises(DesktopTimeoutError, match="larger quota"):
            await provider.desktop(osworld_spec).start(timeout=0.2)


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_a_slow_start_that_nobody_waits_for_leaves_no_orphan(cluster, provider_of, osworld_spec, until, how):
    cluster.gate.clear()
    async with opened(provider_of(cluster)) as provider:
        desktop = provider.desktop(osworld_spec)
        starting = asyncio.create_task(desktop.start(timeout=0.3 if how == "late" else 30))
        await until(lambda: cluster.starting == 1)
        if how == "cancelled":
            starting.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else DesktopTimeoutError):
            await starting
        assert cluster.starting == 1  # it boots on, and its id is known to nobody yet
        cluster.gate.set()
        await until(lambda: not cluster.starting and not cluster.emulators)
        assert cluster.starts == 1


async def test_closing_waits_for_slow_starts(cluster, provider_of, osworld_spec, until):
    cluster.gate.clear()
    provider = provider_of(cluster)
    await provider.open()
    starting = asyncio.create_task(provider.desktop(osworld_spec).start(timeout=30))
    await until(lambda: cluster.starting == 1)
    starting.cancel()
    closing = asyncio.create_task(provider.close())
    await asyncio.sleep(0)
    cluster.gate.set()
    await asyncio.wait_for(closing, 10)
    assert cluster.starts == 1 and not cluster.emulators
    await provider.close()


async def test_a_machine_whose_reply_was_lost_is_found_where_the_token_is_exclusive(
    cluster, provider_of, osworld_spec, until, caplog
):
    async with opened(provider_of(cluster, exclusive_token=True)) as provider:
        cluster.drop_replies = True
        with pytest.raises(DesktopError, match="reply was lost"):
            await provider.desktop(osworld_spec).start(timeout=10)
        await until(lambda: cluster.starts == 1 and not cluster.emulators)
    assert "whose start was lost" in caplog.text


async def test_with_a_shared_token_a_lost_machine_is_named_and_left_alone(
    cluster, provider_of, osworld_spec, until, caplog
):
    async with opened(provider_of(cluster, start_timeout_s=0.3)) as provider:
        cluster.drop_replies = True
        with pytest.raises(DesktopError, match="reply was lost"):
            await provider.desktop(osworld_spec).start(timeout=10)
        with caplog.at_level(logging.WARNING):
            await until(lambda: "may be an orphan" in caplog.text)
    assert len(cluster.emulators) == 1
    assert next(iter(cluster.emulators)) in caplog.text and TOKEN not in caplog.text


async def test_an_exclusive_token_frees_what_a_killed_server_left(cluster, provider_of, osworld_spec):
    await cluster.boot(TOKEN)
    async with opened(provider_of(cluster)):
        assert len(cluster.emulators) == 1
    async with opened(provider_of(cluster, exclusive_token=True)):
        assert not cluster.emulators


async def test_the_server_with_most_free_places_comes_first(cluster, start_machine, provider_of, osworld_spec):
    async with GuiDockerEnvServer(start_machine, {TOKEN: 3}) as larger:
        async with opened(provider_of(cluster, larger)) as provider:
            desktops = [provider.desktop(osworld_spec) for _ in range(4)]
            for desktop in desktops:
                await desktop.start()
            assert (len(cluster.emulators), len(larger.emulators)) == (1, 3)
            await asyncio.gather(*(desktop.stop() for desktop in desktops))
        assert not cluster.emulators and not larger.emulators


async def test_a_server_that_fails_is_passed_over(cluster, start_machine, provider_of, osworld_spec):
    cluster.failure = (500, "Failed to start emulator: no KVM")
    async with GuiDockerEnvServer(start_machine, {TOKEN: 1}) as other:
        async with opened(provider_of(cluster, other)) as provider:
            desktop = provider.desktop(osworld_spec)
            await desktop.start()
            assert len(other.emulators) == 1
            await desktop.stop()
    async with opened(provider_of(cluster)) as provider:
        with pytest.raises(DesktopError, match="no KVM"):
            await provider.desktop(osworld_spec).start()


async def test_a_refused_token_is_a_configuration_error_that_does_not_repeat_it(cluster, provider_of, osworld_spec):
    del cluster.tokens[TOKEN]
    async with opened(provider_of(cluster)) as provider:
        with pytest.raises(ConfigurationError, match="OSWORLD_TOKEN") as caught:
            await provider.desktop(osworld_spec).start()
    assert TOKEN not in str(caught.value)


async def test_without_any_server_it_does_not_open(provider_of, start_machine):
    async with GuiDockerEnvServer(start_machine, {}) as server:
        provider = provider_of(server)
    with pytest.raises(ConfigurationError, match="start one, or correct OSWORLD_BASE_URL"):
        await provider.open()
