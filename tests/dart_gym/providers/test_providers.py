"""Choosing a provider and its options, and machines that run already, lent one by one."""

from __future__ import annotations

import asyncio
import re

import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ConfigurationError, DesktopError, DesktopTimeoutError
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.fake_desktop import FakeDesktop
from dart_gym.desktops.keeper.kept_desktop import KeptDesktop
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from dart_gym.desktops.osworld_vm.machine_address import parse_machine_url
from dart_gym.providers.provider import opened
from dart_gym.providers.provider_registry import PROVIDERS, make_provider

# --- choosing


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("dokcer", {}, "did you mean 'docker'"),
        ("nothing like it", {}, "known: xvfb, docker"),
        ("docker", {"netwrok": "host"}, "did you mean 'network'"),
        ("docker", {"memory": "much"}, "memory"),
        ("docker", {"memory": "1MiB"}, "memory"),
        ("docker", {"cpus": "0"}, "cpus"),
        ("docker", {"user": "root"}, "user"),
        ("docker", {"seccomp": "/nowhere/profile.json"}, "cannot be read"),
        ("docker", {"host": "tcp://elsewhere:2375"}, "not of this machine"),
        ("xvfb", {"image": "x"}, "it has no keys"),
        ("url", {}, "urls"),
        ("url", {"urls": ","}, "urls"),
        ("url", {"urls": "ftp://host"}, "http://host:5000"),
        ("url", {"urls": "http://host:many"}, "port"),
        ("url", {"urls": "http://a:5000,http://a:5000"}, "given twice"),
    ],
)
def test_a_bad_choice_is_an_error_that_says_what_to_do(name, options, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        make_provider(name, options)


def test_options_are_typed():
    provider = make_provider("docker", {"memory": "2GiB", "boot_timeout_s": "90", "network": "bridge"})
    assert provider.options.memory == 2 * 2**30
    assert provider.options.boot_timeout_s == 90.0
    assert provider.longest_start_s == 90.0


async def test_the_embedded_provider_makes_what_the_server_makes_without_one():
    async with opened(make_provider("xvfb")) as provider:
        assert isinstance(provider.desktop(DesktopSpec()), KeptDesktop)
        assert isinstance(provider.desktop(DesktopSpec(kind="fake")), FakeDesktop)


@pytest.mark.parametrize("name", [name for name in PROVIDERS.built_in if name != "xvfb"])
def test_every_provider_leaves_drawn_desktops_and_named_machines_alone(name):
    options = {"url": {"urls": "http://127.0.0.1:1"}}
    provider = make_provider(name, options.get(name))
    assert isinstance(provider.desktop(DesktopSpec(kind="fake")), FakeDesktop)
    assert provider.desktop(DesktopSpec(kind="osworld", url="http://127.0.0.1:2")).spec.url == "http://127.0.0.1:2"


@pytest.mark.parametrize("profile", ["bare", "browser"])
def test_osworlds_machines_have_osworlds_profile_alone(profile):
    provider = make_provider("url", {"urls": "http://127.0.0.1:1"})
    with pytest.raises(ConfigurationError, match="--provider xvfb or docker"):
        provider.desktop(DesktopSpec(profile=profile))


def test_a_machines_url_hides_its_token_and_may_lead_ports_elsewhere():
    address = parse_machine_url("http://any:secret@host:5001?9222=30022")
    assert (address.shown, address.host, dict(address.ports)) == ("host:5001", "host", {9222: 30022})
    assert "secret" in address.base and "secret" not in address.shown


# --- machines that run already


async def test_machines_are_lent_one_by_one_and_go_to_who_waited_longest(start_machine, osworld_spec):
    apis = [(await start_machine())[0] for _ in range(2)]
    provider = make_provider("url", {"urls": ",".join(api.address.url for api in apis)})
    assert provider.capacity == 2
    first, second, third, fourth = (provider.desktop(osworld_spec) for _ in range(4))
    await first.start()
    await second.start()
    assert first.shown != second.shown
    waiting = [asyncio.create_task(desktop.start()) for desktop in (third, fourth)]
    await asyncio.sleep(0)
    freed = first.shown
    await first.stop()
    await waiting[0]
    assert third.shown == freed and not waiting[1].done()
    assert (await third.screenshot()).shape == (240, 320, 3)
    await asyncio.gather(second.stop(), third.stop())
    await waiting[1]
    await fourth.stop()
    await fourth.stop()
    assert len(provider.free) == 2


async def test_who_waits_in_vain_or_leaves_takes_no_machine_along(start_machine, osworld_spec):
    api, _ = await start_machine()
    provider = make_provider("url", {"urls": f"{api.address.url}"})
    provider.longest_start_s = 0.0
    holder, late, leaver = (provider.desktop(osworld_spec) for _ in range(3))
    await holder.start()
    with pytest.raises(DesktopTimeoutError, match="fewer desktops, or more urls"):
        await late.start(timeout=0.05)
    leaving = asyncio.create_task(leaver.start())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await holder.stop()
    await late.start()
    await late.stop()


async def test_a_machine_that_is_dead_or_has_another_screen_is_given_back(start_machine, osworld_spec):
    api, _ = await start_machine()
    provider = make_provider("url", {"urls": f"{api.address.url}"})
    other = DesktopSpec(profile="osworld", width=640, height=480)
    with pytest.raises(ConfigurationError, match="320x240"):
        await provider.desktop(other).start()
    desktop = provider.desktop(osworld_spec)
    await desktop.start()
    await api.close()
    with pytest.raises(DesktopError):
        await desktop.screenshot()
    assert not desktop.alive
    assert len(provider.free) == 1


@pytest.mark.desktop
async def test_a_server_uses_the_desktops_of_its_provider(start_desktop, tmp_path):
    api = OSWorldAPI(await start_desktop(profile="osworld"), open_to_all=True)
    await api.start()
    task = {
        "id": "own/look",
        "instruction": "Look.",
        "config": [],
        "evaluator": {"func": "infeasible"},
    }
    async with opened(make_provider("url", {"urls": f"{api.address.url}"})) as provider:
        settings = ServerSettings(listen=f"ws+unix://{tmp_path}/s", desktops=1)
        async with ClusterServer(settings, provider.desktop) as server:
            client = ClusterClient(server.url, settings=ClientSettings(reconnect_s=0.5))
            async with client.session() as session:
                result = await session.reset(task, seed=0, desktop={"width": 320, "height": 240})
                assert result.terminal is None, result.evaluation
                assert result.observation.screenshot.shape == (240, 320, 3)
        assert len(provider.free) == 1
    await api.close()
