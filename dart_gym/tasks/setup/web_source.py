"""Reading a file of the web for somebody who is not trusted: a task names the address, this machine goes there.

Invariants:
    - Only addresses of the public internet are connected to, whatever a name resolves to and however often the server
      redirects: the address of each connection is looked at when its socket is made, so no name can change in between.
    - Hosts that the operator names are fetched from wherever they are; a redirect from there is looked at anew.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

from yarl import URL

if TYPE_CHECKING:
    import aiohttp

HOSTS_VARIABLE = "DART_GYM_FETCH_HOSTS"
MAX_REDIRECTS = 10
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 15.0, 60.0
_REDIRECTS = (301, 302, 303, 307, 308)
_EMBEDDING = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))  # NAT64: IPv4 in IPv6


class RefusedError(Exception):
    """An address that is not fetched from; the message says why and what the operator may do."""


def allowed_hosts() -> frozenset[str]:
    """Hosts that the operator allows beside the public internet: `DART_GYM_FETCH_HOSTS=files.lan,10.0.0.7:8080`."""
    return frozenset(filter(None, (host.strip() for host in os.environ.get(HOSTS_VARIABLE, "").split(","))))


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public internet. Pure."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inside = ip.ipv4_mapped or ip.sixtofour
        if inside is not None:
            return is_public(str(inside))
        if ip.teredo is not None or any(ip in network for network in _EMBEDDING):
            return False
    return ip.is_global and not ip.is_multicast


def is_allowed(url: URL, hosts: Collection[str]) -> bool:
    """Return whether the operator named the host of a URL, with or without its port. Pure."""
    return url.host in hosts or f"{url.host}:{url.port}" in hosts


@asynccontextmanager
async def opened(address: str, hosts: Collection[str] = ()) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer at the end of all redirects, its content unread and undecoded.

    Args:
        address: an http or https URL.
        hosts: host names and addresses that may be private, with or without a port; see `allowed_hosts`.

    Raises:
        RefusedError: it leads to an address that is not public, or not to the web, or nowhere in `MAX_REDIRECTS` steps.
        aiohttp.ClientError: it cannot be reached or says no.
    """
    import aiohttp  # takes a process half a second, and most fetch nothing

    url = URL(address)
    for _ in range(MAX_REDIRECTS):
        if url.scheme not in ("http", "https") or not url.host:
            raise RefusedError(f"{url} is no http address")
        async with _session(url, is_allowed(url, hosts)) as session:
            try:
                response = await session.get(url, allow_redirects=False)
            except aiohttp.ClientConnectorError as error:
                if isinstance(error.os_error, _PrivateAddress):
                    raise RefusedError(_reason(url, str(error.os_error))) from None
                raise
            async with response:
                if response.status not in _REDIRECTS:
                    response.raise_for_status()
                    yield response
                    return
                url = url.join(URL(response.headers.get("Location", "")))
    raise RefusedError(f"{address} redirects more than {MAX_REDIRECTS} times")


class _PrivateAddress(OSError):
    """Raised where a socket would be made for an address that is not public."""


def _session(url: URL, allowed: bool) -> aiohttp.ClientSession:
    import aiohttp

    proxied = not allowed and _uses_proxy(url)
    if proxied and not _looks_public(str(url.host)):
        raise RefusedError(_reason(url, str(url.host)))
    connector = aiohttp.TCPConnector(socket_factory=None if allowed or proxied else _public_socket, force_close=True)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S),
        trust_env=proxied,
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
    )


def _public_socket(info: Any) -> socket.socket:
    family, kind, protocol, _, where = info
    if not is_public(where[0]):
        raise _PrivateAddress(where[0])
    return socket.socket(family, kind, protocol)


def _uses_proxy(url: URL) -> bool:
    """Return whether the operator's environment sends a URL through a proxy, which then resolves names and connects."""
    return url.scheme in getproxies() and not proxy_bypass(str(url.host))


def _looks_public(host: str) -> bool:
    """Return whether a host may be public as it is written: a name is the proxy's to resolve. Pure."""
    try:
        return is_public(host.strip("[]"))
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


def _reason(url: URL, address: str) -> str:
    return (
        f"{url} leads to {address}, which is not on the public internet; next step, if tasks may read from there: "
        f"start the server with {HOSTS_VARIABLE}={url.host}"
    )
