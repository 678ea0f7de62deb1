"""The rules of settling: a pure state machine that is fed what a screen does."""

from dataclasses import dataclass, field

from dart_gym.desktops.base.desktop import SettlePolicy

FIRST_PERIOD_MS = 2.0
LONGEST_PERIOD_MS = 16.0
_GROWTH = 1.5
_MAX_LOAD = 0.2  # share of the time that may go into comparing frames
_WORK_REST_MS = 150.0


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
        self.held = True
        self.looks = 0
        self.working = 0
        self.last_change_ms = now_ms
        self.quiet_ms = max(self.quiet_ms, _WORK_REST_MS)

    def rest_again(self, now_ms: float) -> None:
        """Begin another rest of the same length, as this one does not count; the cap stays."""
        self.last_change_ms, self.period_ms = now_ms, FIRST_PERIOD_MS

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
