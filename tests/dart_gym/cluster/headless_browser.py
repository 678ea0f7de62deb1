"""A headless Chromium with one page, driven over DevTools."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from websockets.asyncio.client import connect

from dart_gym.desktops.applications.browser import browser_program
from dart_gym.desktops.applications.devtools import DevTools

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


@contextlib.asynccontextmanager
async def headless_page(profile: Path, *, timeout: float = 60.0) -> AsyncIterator[DevTools]:
    """The first page of a Chromium that ends with the context."""
    process = await asyncio.create_subprocess_exec(
        browser_program(),
        *FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort", time.monotonic() + timeout)
        async with httpx.AsyncClient(trust_env=False) as client:
            targets = (await client.get(f"http://127.0.0.1:{port}/json")).json()
        url = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
        socket = await connect(url, max_size=1 << 26, compression=None, ping_interval=None, proxy=None)
        page = DevTools(socket, timeout)
        try:
            yield page
        finally:
            await page.close()
    finally:
        process.terminate()
        await process.wait()


async def _port(file: Path, deadline: float) -> int:
    while not (file.exists() and (lines := file.read_text().split())):
        assert time.monotonic() < deadline, "Chromium did not open its DevTools port"
        await asyncio.sleep(0.05)
    return int(lines[0])


async def wait_for(page: DevTools, expression: str, *, timeout: float = 30.0) -> object:
    """The first truthy value of a JavaScript expression."""
    deadline = time.monotonic() + timeout
    while not (value := await page.evaluate(expression)):
        assert time.monotonic() < deadline, f"the page never came to: {expression}"
        await asyncio.sleep(0.05)
    return value
