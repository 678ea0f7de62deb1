"""Pages of the live web: which host an address names, and whether the network can be why a desktop did not load it.

Invariants:
    - In an evaluation, what the desktop says of its network is a program's word, which the agent may have replaced.
      Only what this machine finds out itself is evidence.
"""

import asyncio
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from dart_gym.sites.site_catalog import RESERVED
from dart_gym.tasks.setup.web_source import RefusedError, opened

REACH_TIMEOUT_S = 30.0
_SCHEME = re.compile(r"[a-z-]+:(?!\d)", re.IGNORECASE)
"""What `about:blank` and `data:,x` begin with, and `example.org:80` does not."""


def web_host(url: str) -> str:
    """Return the host of an address of the web, "" for what is on the desktop itself. Pure."""
    if "://" not in url and not _SCHEME.match(url):
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # the web has no such host
    local = parts.scheme not in ("http", "https") or parts.hostname in ("localhost", "127.0.0.1", None)
    local = local or str(parts.hostname).rpartition(".")[2] in RESERVED  # a mock site
    return "" if local else str(parts.hostname)


async def network_fails(url: str, hosts: Collection[str]) -> bool:
    """Return whether this machine does not reach a page of the web either.

    False, too, for what it may not fetch itself: without evidence, the page is the desktop's affair.

    Args:
        url: the page's address.
        hosts: hosts that may be fetched from though they are not on the public internet.
    """
    if not web_host(url):
        return False
    import aiohttp  # takes a process half a second, and most fetch nothing

    try:
        async with asyncio.timeout(REACH_TIMEOUT_S), opened(url, hosts):
            return False
    except (aiohttp.ClientResponseError, RefusedError):  # an answer, if a negative one; or none of our business
        return False
    except (aiohttp.ClientError, TimeoutError, OSError):
        return True
