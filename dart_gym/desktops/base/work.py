"""Do programs work behind a screen that stands still? Then its rest is no proof that nothing follows.

Two kinds of processes are looked at when a screen has rested:

- A *new* process, begun since the last rest: a program that starts, or loads what it will show.
- A *known* process that has used the processor for a good part of the rest, or wants it now: a program that handles an
  input, looks something up, or draws the frames of a transition slowly. The time that it waited for a processor counts
  as if it had run, so that a busy machine does not make a working program look idle.

What a program waits for without a processor (a timer, a network) is not seen.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dart_gym.desktops.base.settling_rules import Settling

_WORKING_SHARE = 0.2  # of the looks at a rest: what is idle wakes up now and then
_DEMANDED_SHARE = 0.1  # of a rest; a program that ticks without drawing stays below
_FINISHING_MS = 8.0  # after a change: what a program does once its frame is drawn announces no further one
_MAX_HELD = 3  # waits that a program which never rests may hold up


@dataclass(slots=True)
class Work:
    """Whether processes work behind a screen that stands still; lives as long as the desktop.

    A process is new until a rest in which the new ones hardly ran.

    Attributes:
        processes: reads by process whether it runs, or wants to, at this moment.
        demands: reads by process for how many seconds it has used a processor, or waited for one.
        any_thread: reads whether any thread of a process runs, or wants to; `processes` need to know of the first only.
        known: those that are not new.
        held: how many waits in a row new processes held up to the cap; after `_MAX_HELD` they are known.
        restless: by known process the same; after `_MAX_HELD` it is left aside until it is seen at rest.
    """

    processes: Callable[[], Mapping[str, bool]]
    demands: Callable[[Iterable[str]], Mapping[str, float]]
    any_thread: Callable[[str], bool]
    known: set[str]
    held: int = 0
    restless: Counter[str] = field(default_factory=Counter)
    _begun: Mapping[str, float] = field(default_factory=dict)  # demands in the beginning of this wait
    _before: Mapping[str, float] = field(default_factory=dict)  # and of this rest
    _before_ms: float = 0.0
    _working: set[str] = field(default_factory=set)  # known ones that the last rest did not count for

    def begin(self) -> None:
        """Begin a wait."""
        self._before = self._begun = self.demands(self.known)
        self._before_ms, self._working = 0.0, set()

    def judge(self, verdict: bool | None, now_ms: float, state: Settling) -> bool | None:
        """The verdict on a look at the screen, or None where the rest does not count."""
        if now_ms - state.last_change_ms < _FINISHING_MS or self._before_ms < state.last_change_ms:
            self._before, self._before_ms = self.demands(self.known), now_ms
        if verdict is False:
            self.held += state.held
            self.restless.update(self._working)
        if verdict is False or not (verdict or state.held):
            return verdict
        found = self.processes()
        new = found.keys() - self.known
        state.looks, state.working = state.looks + 1, state.working + any(found[pid] for pid in new)
        if not verdict:
            return None
        works = not state.held or state.working >= _WORKING_SHARE * state.looks
        if new and self.held < _MAX_HELD and works:
            state.hold(now_ms)
            return None
        self._look_at_known(found, now_ms)
        if any(self.restless[pid] < _MAX_HELD for pid in self._working):
            state.rest_again(now_ms)
            return None
        if self.held >= _MAX_HELD:
            self.restless.update(dict.fromkeys(new, _MAX_HELD))
        self.known, self.held = set(found), 0
        return True

    def _look_at_known(self, found: Mapping[str, bool], now_ms: float) -> None:
        """Find which known processes have worked in this rest; the others are not restless."""
        most = 1e-3 * _DEMANDED_SHARE * (now_ms - self._before_ms)
        after = self.demands(self.known & found.keys())
        self._working = {
            pid
            for pid, seconds in after.items()
            if found[pid]
            or seconds - self._before.get(pid, seconds) > most
            or (seconds > self._begun.get(pid, seconds) and self.any_thread(pid))
        }
        for pid in self.restless.keys() - self._working:
            del self.restless[pid]
