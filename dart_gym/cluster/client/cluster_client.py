"""The client of a cluster: it opens sessions on the cluster's servers.

A cluster is one server, or several (`ws://a,ws://b`): each new session goes to the least loaded one, and stays there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dart_gym.cluster.client.client_session import ClientSession
from dart_gym.cluster.client.cluster_servers import ClientSettings, ClusterServers
from dart_gym.cluster.client.server_choice import combine
from dart_gym.cluster.wire.error_codes import ErrorCode
from dart_gym.core.errors import ClusterError


class ClusterClient:
    """Opens sessions of one cluster. Holds no connection itself.

    Args:
        url: `ws+unix:///path.sock`, `ws://host:port` or `wss://host:port`; of several servers, separated by commas.
        token: bearer token, if the cluster wants one.
        settings: how the client behaves; the defaults of `ClientSettings` if None.
    """

    def __init__(self, url: str, token: str | None = None, settings: ClientSettings | None = None) -> None:
        self.servers = ClusterServers(url, token, settings)

    @property
    def url(self) -> str:
        """The cluster's URL, as given."""
        return self.servers.url

    def session(self) -> ClientSession:
        """A session, to be used with `async with`. It gets its desktop at the first reset."""
        return ClientSession(self.servers)

    async def status(self) -> dict[str, Any]:
        """What every desktop does, and counters; of several servers all together, and "servers" by URL.

        Needs no desktop.

        Raises:
            ClusterError: unreachable (of several servers all are), or the token is wrong.
        """
        if len(self.servers.records) == 1:
            async with self.session() as session:
                return await session.status()
        answers = await asyncio.gather(*(self.servers.ask(server) for server in self.servers.records))
        if not any(isinstance(answer, dict) for answer in answers):
            raise ClusterError(f"cannot reach the cluster at {self.url}: {answers[0]}", ErrorCode.UNREACHABLE)
        return combine(dict(zip((server.address.url for server in self.servers.records), answers, strict=True)))
