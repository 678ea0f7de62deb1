"""The place where a cluster's desktops are: its servers say which programs and files they do not have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dart_gym.cluster.client.cluster_client import ClusterClient
from dart_gym.cluster.client.cluster_servers import NO_ANSWER, ClientSettings, ClusterServers, ServerRecord
from dart_gym.cluster.wire import frames
from dart_gym.cluster.wire.frames import ErrorCode, Request
from dart_gym.core.errors import ClusterError
from dart_gym.tasks.requirements.place import Lacking, Place

log = logging.getLogger(__name__)
PATIENCE_S = 10.0  # with a cluster that is starting
ANSWER_S = 30.0
T = TypeVar("T")


def place_of(
    url: str | None, token: str | None = None, osworld_url: str | None = None, patience_s: float = PATIENCE_S
) -> Place:
    """Return the place of the desktops of the cluster at `url`, or of this machine's. See `Place.of`.

    The cluster is asked when a task needs a program or a file. One that does not answer counts as having all of them,
    which is logged once.
    """
    if url is None or osworld_url is not None:
        return Place.of(url, osworld_url)
    silent = False

    def ask(asked: Lacking) -> Lacking:
        nonlocal silent
        if silent:
            return Lacking()
        try:
            settings = ClientSettings(reconnect_s=patience_s, answer_s=patience_s)
            return _in_a_thread(lacking(ClusterClient(url, token, settings), asked))
        except ClusterError as error:
            if error.code is ErrorCode.AUTH:
                raise
            silent = True
            log.warning("which tasks can run on the cluster at %s is not known: %s", url, error)
            return Lacking()

    return Place.of(url, ask=ask)


def _in_a_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a loop of its own: the caller may be in one."""
    with ThreadPoolExecutor(1, thread_name_prefix="dart-gym-place") as executor:
        return executor.submit(asyncio.run, coroutine).result()


async def lacking(client: ClusterClient, asked: Lacking) -> Lacking:
    """Return which programs and files some server of a cluster does not have; those that do not answer are left out.

    Raises:
        ClusterError: if no server answers, or the token is wrong.
        ProtocolError: if an answer is malformed.
    """
    async with client.session() as session:  # waits for a server that is starting
        if not client.several:
            return Lacking.from_wire(await session.ask_lacking(asked.to_wire(), ANSWER_S))
    answers = await asyncio.gather(*(_ask(client, server, asked) for server in client.records))
    found = Lacking()
    for answer in answers:
        found |= answer
    return found


async def _ask(client: ClusterServers, server: ServerRecord, asked: Lacking) -> Lacking:
    try:
        async with asyncio.timeout(ANSWER_S):
            connection, _ = await client.connect(server)
            try:
                await connection.send(frames.encode_request(Request(1, "lacking", ANSWER_S * 1000, asked.to_wire())))
                reply = frames.decode_reply(await connection.recv())
            finally:
                await connection.close()
    except NO_ANSWER as error:
        log.warning("%s does not say which tasks it can run: %s: %s", server.address.url, type(error).__name__, error)
        return Lacking()
    if reply.code is not None:
        raise frames.exception_for(reply.code, reply.message)
    return Lacking.from_wire(reply.result)
