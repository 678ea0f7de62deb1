"""OSWorld's own code against a desktop of this package, for comparisons: its controllers, its `DesktopEnv.evaluate`.

It runs in the evaluator's environment, as a program of its own, and reaches the desktop through an open OSWorld API.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.osworld_api.api_address import APIAddress
from dart_gym.desktops.osworld_api.api_server import OSWorldAPI
from dart_gym.tasks.evaluation import evaluator_environment

_MAIN = Path(__file__).with_name("stock_osworld_main.py")


class StockError(Exception):
    """OSWorld's code raised; the message has its words and its traceback."""


async def stock_score(
    task: dict[str, Any],
    api: APIAddress,
    last_action: str | None = "DONE",
    *,
    set_up: bool = False,
    timeout: float = 120.0,
) -> float | None:
    """What the unmodified `DesktopEnv.evaluate` gives for a desktop as it is now.

    Args:
        task: OSWorld's JSON.
        api: address of an open api of the desktop.
        last_action: "DONE", "FAIL", or None to run no evaluation (with `set_up`).
        set_up: run OSWorld's own `SetupController.setup` with the task's config first.
        timeout: seconds.

    Raises:
        StockError: OSWorld's code raised.
    """
    answer = await _ask({"task": task, "last_action": last_action, "set_up": set_up}, api, timeout)
    return answer["score"]


async def stock_calls(
    calls: list[tuple[str, str, dict[str, Any]]], api: APIAddress, *, timeout: float = 120.0
) -> list[Any]:
    """Call methods of OSWorld's controllers in order.

    Args:
        calls: "python" or "setup" (which controller), the method's name, its keyword arguments.
        api: address of an open api.
        timeout: seconds.

    Returns:
        what each gave; bytes as `{"bytes": length, "head": first eight}`.
    """
    return (await _ask({"calls": calls}, api, timeout))["results"]


async def stock_score_on(desktop: Desktop, task: dict[str, Any], last_action: str | None = "DONE", **options: Any):
    """`stock_score` through an API that is opened for it."""
    async with OSWorldAPI(desktop, open_to_all=True) as api:
        return await stock_score(task, api.address, last_action, **options)


async def _ask(request: dict[str, Any], api: APIAddress, timeout: float) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        str(evaluator_environment.find().python),
        str(_MAIN),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8"},
    )
    try:
        async with asyncio.timeout(timeout):
            body = json.dumps({**request, "api": api.describe()}).encode()
            output, errors = await process.communicate(body)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    words = errors.decode(errors="replace")[-2000:]
    if not output:
        raise StockError(f"OSWorld's code ended with {process.returncode}: {words}")
    answer = json.loads(output)
    if "error" in answer:
        raise StockError(f"{answer['error']}\n{answer['traceback']}\n{words}")
    return answer
