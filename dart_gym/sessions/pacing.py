"""How long an episode waits for the screen: until it stands still, or as long as OSWorld does.

Scores of one policy differ with the pacing, so it is recorded in every info.
"""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass
from typing import Any

from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.base.desktop import Desktop, SettlePolicy, SettleResult


@dataclass(frozen=True, slots=True)
class Pacing:
    """A way of waiting.

    Attributes:
        name: name in options and infos.
        after_reset_s: a fixed pause after the set-up; None: until the screen stands still.
        after_action_s: a fixed pause after an action; None: until the screen stands still.
    """

    name: str
    after_reset_s: float | None = None
    after_action_s: float | None = None

    async def wait(self, desktop: Desktop, policy: SettlePolicy, pause_s: float | None) -> SettleResult:
        """Wait once; `pause_s` is one of the pauses above."""
        if pause_s is None:
            return await desktop.settle(policy)
        await asyncio.sleep(pause_s)  # the user asked for OSWorld's fixed pauses, to compare scores
        looked = await desktop.settle(_LOOK)
        return dataclasses.replace(looked, waited_s=pause_s + looked.waited_s)


_LOOK = SettlePolicy(quiet_ms=20.0, max_ms=60.0)  # whether the screen stands still, not a wait for it
SETTLE = Pacing("settle")
OSWORLD = Pacing("osworld", after_reset_s=60.0, after_action_s=2.0)
STEP_PAUSE = Pacing("step-pause", after_action_s=2.0)
"""The pause of OSWorld's `step`, without the minute that its runners wait after a reset."""
PACINGS = {pacing.name: pacing for pacing in (SETTLE, OSWORLD, STEP_PAUSE)}


def pacing_named(name: str | None) -> Pacing:
    """The pacing of a name; "settle" by default. Raises `ConfigurationError`."""
    if name is None:
        return SETTLE
    if name not in PACINGS:
        raise ConfigurationError(f"unknown pacing {name!r}; choose one of {', '.join(PACINGS)}")
    return PACINGS[name]


def describe(pacing: Pacing, settled: SettleResult | None) -> dict[str, Any]:
    """What infos say about a wait: how long it was, and whether the screen stood still in the end. Pure."""
    return {
        "pacing": pacing.name,
        "settled": True if settled is None else settled.stable,
        "settle_s": 0.0 if settled is None else settled.waited_s,
    }
