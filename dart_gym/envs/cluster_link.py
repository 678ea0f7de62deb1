"""The way to a cluster: of a URL, or of this process's private one, for synchronous and for asynchronous users."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import ClientSettings, check_codec
from dart_gym.cluster.client.private_cluster import acquire_shared, release_shared
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.background_loop import BackgroundLoop, background_loop


class ClusterLink:
    """A client made when it is first needed: of the given URL, or of this process's private cluster."""

    def __init__(self, url: str | None, token_env: str | None, settings: ClientSettings | None = None) -> None:
        self._url, self._token_env, self._settings = url, token_env, settings
        self._client: ClusterClient | None = None
        self._private = False
        self._making = asyncio.Lock()

    @property
    def loop(self) -> BackgroundLoop:
        """The loop in which its sessions run."""
        return background_loop()

    async def client(self) -> ClusterClient:
        """The client."""
        async with self._making:  # many environments ask at once, and the private cluster counts who acquired it
            if self._client is None:
                token, url = self._token(), self._url
                if url is None:
                    url, self._private = await acquire_shared(), True
                self._client = ClusterClient(url, token, self._settings)
            return self._client

    def _token(self) -> str | None:
        if self._token_env is None:
            return None
        token = os.environ.get(self._token_env)
        if not token:
            raise ConfigurationError(f"the environment variable {self._token_env} (token_env) is not set")
        return token

    async def close(self) -> None:
        """Let go of the private cluster, if there is one. Idempotent."""
        self._client = None
        if self._private:
            self._private = False
            await release_shared()


@asynccontextmanager
async def connect(
    url: str | None = None, *, token_env: str | None = None, codec: str | None = None
) -> AsyncIterator[ClusterClient]:
    """A cluster to open sessions of, one coroutine per desktop.

        async with dart_gym.connect() as cluster, cluster.session() as session:
            result = await session.reset("miniwob/click-test", seed=0)

    Args:
        url: address of a server, or of several, separated by commas; without one a private cluster is started.
        token_env: name of the environment variable that holds the cluster's token.
        codec: image codec of the screenshots; see `dart_gym.envs.env_settings.EnvSettings`.

    Raises:
        ConfigurationError: a bad URL or codec, or a token that is not there.
        ClusterError: the private cluster did not start.
    """
    link = ClusterLink(url, token_env, ClientSettings(codecs=(check_codec(codec),) if codec else ()))
    try:
        yield await asyncio.wrap_future(link.loop.submit(link.client))  # its child process belongs to that loop
    finally:
        await asyncio.wrap_future(link.loop.submit(link.close))
