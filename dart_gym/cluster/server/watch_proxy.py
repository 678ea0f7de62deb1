"""A cluster for the page of this machine: passes state and frames on, read-only, and adds the cluster's token."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from dart_gym.cluster.server.server_settings import ANSWER_TIMEOUT_S
from dart_gym.cluster.server.watch_page import HEADERS
from dart_gym.cluster.wire.cluster_address import Address, parse_address
from dart_gym.cluster.wire.frames import ErrorCode
from dart_gym.cluster.wire.local_tokens import find_local_token
from dart_gym.core.errors import ClusterError
from dart_gym.utils.waits import waiting_for

_PASSED = ("Content-Type", "ETag", "Cache-Control", *HEADERS)


@contextlib.asynccontextmanager
async def cluster_routes(
    url: str, token: str | None = None, timeout_s: float = ANSWER_TIMEOUT_S
) -> AsyncIterator[list[web.RouteDef]]:
    """Yield the routes that answer the page's requests with a cluster's data.

    Raises:
        ClusterError: if the cluster does not answer within `timeout_s`, is no cluster, or the token is wrong.
    """
    address = parse_address(url)
    token = token or find_local_token(address)
    connector = aiohttp.UnixConnector(address.path) if address.is_unix else aiohttp.TCPConnector()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(timeout_s)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as client:

        async def fetch(path_and_query: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
            try:
                async with client.get(f"{http_url(address)}{path_and_query}", headers=headers) as answer:
                    passed = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
                    return answer.status, passed, await answer.read()
            except TimeoutError as error:
                raise ClusterError(
                    f"{url} did not answer within {timeout_s:g} s: is it a cluster?", ErrorCode.UNREACHABLE
                ) from error
            except aiohttp.ClientError as error:
                raise ClusterError(
                    f"cannot reach the cluster at {url} ({type(error).__name__}: {error}): "
                    "is `dart-gym serve` running there?",
                    ErrorCode.UNREACHABLE,
                ) from error

        async def passed(request: web.Request) -> web.Response:
            asked = {"If-None-Match": value} if (value := request.headers.get("If-None-Match")) else {}
            status, headers, body = await fetch(request.rel_url.raw_path_qs, asked)
            return web.Response(status=status, body=body, headers=headers)

        with waiting_for(f"the cluster at {url}", timeout_s):  # what is wrong is said here and not in the browser
            status, _, body = await fetch("/watch/state", {})
        if status == 401:
            given = "the token is wrong" if token else "it needs a token: name its variable with --token-env"
            raise ClusterError(f"{url} refused: {given}", ErrorCode.AUTH)
        if status != 200:
            raise ClusterError(f"{url} has no page to watch (HTTP status {status})", ErrorCode.PROTOCOL)
        if not _is_state(body):
            raise ClusterError(f"{url} answers, and is no cluster: is `dart-gym serve` running there?")
        yield [web.get("/watch/state", passed), web.get("/watch/frame/{slot}", passed)]


def _is_state(body: bytes) -> bool:
    try:
        state = json.loads(body)
    except ValueError:
        return False
    return isinstance(state, dict) and isinstance(state.get("desktops"), list)


def http_url(address: Address) -> str:
    """Where a cluster answers plain HTTP. Pure."""
    if address.is_unix:
        return "http://localhost"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'https' if address.tls else 'http'}://{host}:{address.port}"
