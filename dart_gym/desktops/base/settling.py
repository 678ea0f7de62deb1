"""When has a screen settled? A pure state machine, and the loop that feeds it frames.

The screen is settled when it has not changed for `quiet_ms`, after at least `min_ms`; the wait is capped by `max_ms`.
A screen tells nothing of a program that has not begun to react. So the program itself may be asked whether it has
handled its input: then a shorter rest after its answer is enough, and none counts before it. A program that starts, or
loads what it will show, cannot be asked; but its processes are new, and use the processor (`Work`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dart_gym.desktops.base.desktop import SettlePolicy, SettleResult
from dart_gym.desktops.base.framebuffer import Framebuffer

FIRST_PERIOD_MS = 2.0
LONGEST_PERIOD_MS = 16.0
_GROWTH = 1.5
_MAX_LOAD = 0.2  # share of the time that may go into comparing frames
_WORK_REST_MS = 150.0
_WORKING_SHARE = 0.2  # of the looks at a rest: what is idle wakes up now and then
_MAX_HELD = 3  # waits that a program which never rests may hold up


@dataclass(slots=True)
class Settling:
    """Decides after each look at the screen whether to go on waiting. All times in ms since the start."""

    policy: SettlePolicy
    last_change_ms: float = 0.0
    period_ms: float = FIRST_PERIOD_MS
    asked: bool = False
    quiet_ms: float = field(init=False)
    held: bool = False
    looks: int = 0  # at processes in this rest
    working: int = 0  # those at which new ones ran

    def __post_init__(self) -> None:
        self.quiet_ms = self.policy.quiet_ms

    @property
    def cap_ms(self) -> float:
        """The longest wait, as far as is known yet."""
        return max(self.policy.max_ms, self.policy.busy_ms) if self.held else self.policy.max_ms

    def hold(self, now_ms: float) -> None:
        """Begin a longer rest, to see whether programs work in it."""
        self.held, self.looks, self.working, self.last_change_ms = True, 0, 0, now_ms
        self.quiet_ms = max(self.quiet_ms, _WORK_REST_MS)

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
        return False if now_ms >= self.cap_ms else None

    def next_look_ms(self, now_ms: float, cost_ms: float = 0.0) -> float:
        """How long to wait: the period, more if looking is costly, but not beyond the moment of a decision."""
        period = max(self.period_ms, cost_ms / _MAX_LOAD)
        if self.asked:
            return max(0.0, min(period, self.cap_ms - now_ms))
        settled_at = max(self.last_change_ms + self.quiet_ms, self.policy.min_ms)
        return max(0.0, min(period, settled_at - now_ms, self.cap_ms - now_ms))


@dataclass(slots=True)
class Work:
    """Whether new processes work behind a screen that stands still; lives as long as the desktop.

    A process is new until a rest in which the new ones hardly ran: one reading is all that a step costs which starts
    none.

    Attributes:
        processes: reads by process whether it runs at this moment.
        known: those that are not new.
        held: how many waits in a row reached the cap; after `_MAX_HELD` the new ones are known.
    """

    processes: Callable[[], Mapping[str, bool]]
    known: set[str]
    held: int = 0

    def judge(self, verdict: bool | None, now_ms: float, state: Settling) -> bool | None:
        """The verdict on a look at the screen, or None where the rest does not count."""
        if verdict is False:
            self.held += state.held
        if verdict is False or not (verdict or state.held):
            return verdict
        found = self.processes()
        new = found.keys() - self.known
        state.looks, state.working = state.looks + 1, state.working + any(found[pid] for pid in new)
        works = not state.held or state.working >= _WORKING_SHARE * state.looks
        if verdict and new and self.held < _MAX_HELD and works:
            state.hold(now_ms)
            return None
        if verdict:
            self.known, self.held = set(found), 0
        return verdict


async def settle(
    framebuffer: Framebuffer,
    policy: SettlePolicy,
    handled: Callable[[float], Awaitable[bool]] | None = None,
    work: Work | None = None,
) -> SettleResult:
    """Wait until the screen stands still or the cap is reached.

    `handled` waits so many seconds for the focused program to say that it has handled its input; False if it cannot.
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
    """Whether the screen differs from `previous`, which is brought up to date."""
    if np.array_equal(screen, previous):
        return False
    np.copyto(previous, screen)
    return True
