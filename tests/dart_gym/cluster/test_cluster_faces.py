"""A server that gives its desktops OSWorld's HTTP face says in the reset's info where it is."""

from __future__ import annotations

import httpx
import pytest

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.osworld_api.api_address import FacePolicy


async def reset_info(tmp_path, faces: FacePolicy | None, use=None) -> dict:
    """Info of a reset; `use` is called with the face's address while the desktop is lent."""
    url = f"ws+unix://{tmp_path}/s.sock"
    async with ClusterServer(ServerSettings(listen=url, desktops=1, faces=faces)):
        async with ClusterClient(url).session() as session:
            info = (await session.reset("fake/click-button", seed=0)).info
            if use is not None:
                await use(info["osworld_face"])
            return info


async def screen_size(**options) -> httpx.Response:
    async with httpx.AsyncClient(**options) as client:
        return await client.post("/screen_size")


async def test_no_face_unless_asked_for(tmp_path):
    assert "osworld_face" not in await reset_info(tmp_path, None)


async def test_a_unix_socket_of_this_user(tmp_path):
    async def use(face):
        path = face["url"].removeprefix("http+unix://")
        answer = await screen_size(transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://desktop")
        assert set(answer.json()) == {"width", "height"}
        assert (tmp_path / "faces").stat().st_mode & 0o077 == 0

    await reset_info(tmp_path, FacePolicy(tmp_path / "faces"), use)
    assert list((tmp_path / "faces").iterdir()) == []  # gone with the desktop


async def test_a_token_for_each_desktop(tmp_path):
    async def use(face):
        assert (await screen_size(base_url=face["url"])).status_code == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert (await screen_size(base_url=face["url"], headers=wrong)).status_code == 401
        right = {"Authorization": f"Bearer {face['token']}"}
        assert (await screen_size(base_url=face["url"], headers=right)).status_code == 200
        assert (await screen_size(base_url=face["url"], auth=("any", face["token"]))).status_code == 200

    await reset_info(tmp_path, FacePolicy(), use)


async def test_an_open_face_refuses_web_pages(tmp_path):
    async def use(face):
        assert (await screen_size(base_url=face["url"])).status_code == 200
        assert (await screen_size(base_url=face["url"], headers={"Origin": "http://evil"})).status_code == 403
        assert face["chromium_port"] and face["vlc_port"]

    await reset_info(tmp_path, FacePolicy(open_to_all=True), use)


async def test_a_directory_with_too_long_a_path_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="shorter directory"):
        await FacePolicy(tmp_path / ("x" * 120)).open(None)
