"""A server that gives its desktops the OSWorld API says in the reset's info where it is."""

from __future__ import annotations

import httpx
import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.osworld_api.api_address import APIPolicy


async def reset_info(tmp_path, policy: APIPolicy | None, use=None) -> dict:
    """Info of a reset; `use` is called with the API's address while the desktop is lent."""
    url = f"ws+unix://{tmp_path}/s.sock"
    async with ClusterServer(ServerSettings(listen=url, desktops=1, osworld_api=policy)):
        async with ClusterClient(url).session() as session:
            info = (await session.reset("fake/click-button", seed=0)).info
            if use is not None:
                await use(info["osworld_api"])
            return info


async def screen_size(**options) -> httpx.Response:
    async with httpx.AsyncClient(**options) as client:
        return await client.post("/screen_size")


async def test_no_face_unless_asked_for(tmp_path):
    assert "osworld_api" not in await reset_info(tmp_path, None)


async def test_a_unix_socket_of_this_user(tmp_path):
    async def use(api):
        path = api["url"].removeprefix("http+unix://")
        answer = await screen_size(transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://desktop")
        assert set(answer.json()) == {"width", "height"}
        assert (tmp_path / "apis").stat().st_mode & 0o077 == 0

    await reset_info(tmp_path, APIPolicy(tmp_path / "apis"), use)
    assert list((tmp_path / "apis").iterdir()) == []  # gone with the desktop


async def test_a_token_for_each_desktop(tmp_path):
    async def use(api):
        assert (await screen_size(base_url=api["url"])).status_code == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert (await screen_size(base_url=api["url"], headers=wrong)).status_code == 401
        right = {"Authorization": f"Bearer {api['token']}"}
        assert (await screen_size(base_url=api["url"], headers=right)).status_code == 200
        assert (await screen_size(base_url=api["url"], auth=("any", api["token"]))).status_code == 200

    await reset_info(tmp_path, APIPolicy(), use)


async def test_an_open_face_refuses_web_pages(tmp_path):
    async def use(api):
        assert (await screen_size(base_url=api["url"])).status_code == 200
        assert (await screen_size(base_url=api["url"], headers={"Origin": "http://evil"})).status_code == 403
        assert api["chromium_port"] and api["vlc_port"]

    await reset_info(tmp_path, APIPolicy(open_to_all=True), use)


def test_a_directory_with_too_long_a_path_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="shorter directory"):
        APIPolicy(tmp_path / ("x" * 120)).new_socket()
