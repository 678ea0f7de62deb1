"""When has a screen settled? A pure state machine, and the loop that feeds it frames.

The screen is settled when it has not changed for `quiet_ms`, after at least `min_ms`; the wait is capped by `max_ms`.
A screen tells nothing of a program that has not begun to react. So the program itself may be asked whether it has
handled its input: then a shorter rest after its answer is enough, and none counts before it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dart_gym.desktops.base.desktop import SettlePolicy, SettleResult
from dart_gym.desktops.base.framebuffer import Framebuffer

FIRST_PERIOD_MS = 2.0
LONGEST_PERIOD_MS = 16.0
_GROWTH = 1.5
_MAX_LOAD = 0.2  # share of the time that may go into comparing frames


@dataclass(slots=True)
class Settling:
    """Decides after each look at the screen whether to go on waiting. All times in ms since the start."""

    policy: SettlePolicy
    last_change_ms: float = 0.0
    period_ms: float = FIRST_PERIOD_MS
    asked: bool = False
    quiet_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self.quiet_ms = self.policy.quiet_ms

    def answer(self, now_ms: float, handled: bool) -> None:
        """Take in the answer of the program; `handled`: it has handled its input, else it cannot say."""
        self.asked = False
        if handled and self.policy.reply_quiet_ms is not None:
            self.quiet_ms = self.policy.reply_quiet_ms
            self.last_change_ms = max(self.last_change_ms, now_ms)

    def observe(self, now_ms: float, changed: bool) -> bool | None:
        """Take in a look at the screen; True: settled, False: gave up at the cap, None: look again."""
        if changed:
            self.last_change_ms, self.period_ms = now_ms, FIRST_PERIOD_MS
        else:
            self.period_ms = min(self.period_ms * _GROWTH, LONGEST_PERIOD_MS)
        rested = now_ms >= self.policy.min_ms and now_ms - self.last_change_ms >= self.quiet_ms
        if rested and not self.asked:
            return True
        return False if now_ms >= self.policy.max_ms else None

    def next_look_ms(self, now_ms: float, cost_ms: float = 0.0) -> float:
        """How long to wait: the period, more if looking is costly, but not beyond the moment of a decision."""
        period = max(self.period_ms, cost_ms / _MAX_LOAD)
        if self.asked:
            return max(0.0, min(period, self.policy.max_ms - now_ms))
        settled_at = max(self.last_change_ms + self.quiet_ms, self.policy.min_ms)
        return max(0.0, min(period, settled_at - now_ms, self.policy.max_ms - now_ms))


async def settle(
    framebuffer: Framebuffer, policy: SettlePolicy, handled: Callable[[float], Awaitable[bool]] | None = None
) -> SettleResult:
    """Wait until the screen stands still or the cap is reached.

    `handled` waits so many seconds for the focused program to say that it has handled its input; False if it cannot.
    """
    if handled is None or policy.reply_quiet_ms is None:
        return await _settle(framebuffer, policy, None)
    answer = asyncio.ensure_future(handled(policy.max_ms / 1e3))
    try:
        return await _settle(framebuffer, policy, answer)
    finally:
        answer.cancel()
        await asyncio.wait([answer])


async def _settle(framebuffer: Framebuffer, policy: SettlePolicy, answer: asyncio.Future[bool] | None) -> SettleResult:
    state = Settling(policy, asked=answer is not None)
    previous = framebuffer.raw.copy()
    frames, start = 1, time.perf_counter()
    while True:
        if state.asked and answer is not None and answer.done():
            state.answer(1e3 * (time.perf_counter() - start), answer.result())
        looked = time.perf_counter()
        changed = frames > 1 and differs(framebuffer.raw, previous)
        now = time.perf_counter()
        verdict = state.observe(1e3 * (now - start), changed)
        if verdict is not None:
            return SettleResult(verdict, time.perf_counter() - start, frames)
        pause = 1e-3 * state.next_look_ms(1e3 * (now - start), 1e3 * (now - looked))
        if state.asked and answer is not None:
            await asyncio.wait([answer], timeout=pause)
        else:
            await asyncio.sleep(pause)
        frames += 1


def differs(screen: NDArray[np.generic], previous: NDArray[np.generic]) -> bool:
    """Whether the screen differs from `previous`, which is brought up to date."""
    if np.array_equal(screen, previous):
        return False
    np.copyto(previous, screen)
    return True
