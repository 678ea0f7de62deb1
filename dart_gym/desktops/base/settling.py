"""When has a screen settled? The loop that feeds frames to the rules.

The screen is settled when it has not changed for `quiet_ms`, after at least `min_ms`; the wait is capped by `max_ms`.
A screen tells nothing of a program that has not begun to react. So the program itself may be asked whether it has
handled its input: then a shorter rest after its answer is enough, and none counts before it. What goes on after the
answer, and in programs that cannot be asked, is seen by the processor time of their processes (`Work`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from dart_gym.desktops.base.desktop import SettlePolicy, SettleResult
from dart_gym.desktops.base.framebuffer import Framebuffer
from dart_gym.desktops.base.settling_rules import Settling
from dart_gym.desktops.base.work import Work


async def settle(
    framebuffer: Framebuffer,
    policy: SettlePolicy,
    handled: Callable[[float], Awaitable[bool]] | None = None,
    work: Work | None = None,
) -> SettleResult:
    """Wait until the screen stands still or the cap is reached.

    `handled` waits the given seconds for the focused program to say that it has handled its input; False if it cannot.
    """
    work = work if policy.busy_ms > 0 else None  # whose time is looked at
    if handled is None or policy.reply_quiet_ms is None:
        return await _settle(framebuffer, policy, None, work)
    answer = asyncio.ensure_future(handled(policy.max_ms / 1e3))
    try:
        return await _settle(framebuffer, policy, answer, work)
    finally:
        answer.cancel()
        await asyncio.wait([answer])


async def _settle(
    framebuffer: Framebuffer, policy: SettlePolicy, answer: asyncio.Future[bool] | None, work: Work | None
) -> SettleResult:
    state = Settling(policy, asked=answer is not None)
    previous = framebuffer.raw.copy()
    frames, start = 1, time.perf_counter()
    if work is not None:
        work.begin()
    while True:
        if state.asked and answer is not None and answer.done():
            state.answer(1e3 * (time.perf_counter() - start), answer.result())
        looked = time.perf_counter()
        changed = frames > 1 and differs(framebuffer.raw, previous)
        now = time.perf_counter()
        verdict = state.observe(1e3 * (now - start), changed)
        if work is not None:
            verdict = work.judge(verdict, 1e3 * (now - start), state)
        if verdict is not None:
            return SettleResult(verdict, time.perf_counter() - start, frames)
        pause = 1e-3 * state.next_look_ms(1e3 * (now - start), 1e3 * (now - looked))
        if state.asked and answer is not None:
            await asyncio.wait([answer], timeout=pause)
        else:
            await asyncio.sleep(pause)
        frames += 1


def differs(screen: NDArray[np.generic], previous: NDArray[np.generic]) -> bool:
    """Return whether the screen differs from `previous`, which is brought up to date."""
    if np.array_equal(screen, previous):
        return False
    np.copyto(previous, screen)
    return True
