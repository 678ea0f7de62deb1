"""A model replica under a virtual clock: prompts one after the other, responses of all requests together.

The GPU prefills one prompt at a time, during which decoding stands still; otherwise all requests decode together, each
at the same pace, the slower the more they are. That is continuous batching without chunking.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque

from dart_lab.efficiency.events import Clock, Signal
from dart_lab.efficiency.workload import ModelTimes


class EngineModel:
    """One replica.

    Attributes:
        version: of its weights.
        serving: whether new requests may be sent.
        in_flight: requests that it works on or will.
        idle: fired when the last one is done.
    """

    def __init__(self, clock: Clock, times: ModelTimes) -> None:
        self.version = 0
        self.serving = True
        self.in_flight = 0
        self.idle = Signal(clock)
        self._clock, self._times = clock, times
        self._prompts: deque[tuple[float, int, Signal]] = deque()
        self._prefill_ends: float | None = None
        self._decoding: list[tuple[float, int, Signal]] = []  # (progress at which it is done, order, told)
        self._progress = 0.0  # tokens that every request has decoded since the beginning
        self._order = itertools.count()
        self._since = 0.0
        self._busy_s = 0.0
        self._plan = 0

    @property
    def busy_s(self) -> float:
        """Seconds until now in which the GPU had something to do."""
        self._advance()
        return self._busy_s

    def submit(self, images: int, prompt_tokens: int, response_tokens: int) -> Signal:
        """Send a request with so much to read; the signal is fired with its last token."""
        done = Signal(self._clock)
        self.in_flight += 1
        prompt = prompt_tokens / self._times.prefill_tokens_per_s, response_tokens, done
        self._clock.after(images * self._times.host_s_per_image, lambda: self._queue(prompt))
        return done

    def _queue(self, prompt: tuple[float, int, Signal]) -> None:
        self._advance()
        self._prompts.append(prompt)
        if self._prefill_ends is None:
            self._next_event()

    def _token_s(self) -> float:
        return self._times.token_s + self._times.token_s_per_request * len(self._decoding)

    def _advance(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        if self._prefill_ends is not None:
            self._busy_s += passed
        elif self._decoding:
            self._busy_s += passed
            self._progress += passed / self._token_s()

    def _next_event(self) -> None:
        """Schedule what happens next on the GPU; what was scheduled before no longer counts."""
        self._plan += 1
        plan = self._plan
        if self._prompts:
            seconds = self._prompts[0][0]
            self._prefill_ends = self._clock.now + seconds
        elif self._decoding:
            seconds = max(0.0, self._decoding[0][0] - self._progress) * self._token_s()
        else:
            return
        self._clock.after(seconds, lambda: self._on_event(plan))

    def _on_event(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        if self._prefill_ends is not None:
            self._prefill_ends = None
            _, tokens, done = self._prompts.popleft()
            heapq.heappush(self._decoding, (self._progress + tokens, next(self._order), done))
        elif self._decoding:  # progress is a sum of floats: the first one is done, up to rounding in its last token
            self._progress = max(self._progress, self._decoding[0][0])
            while self._decoding and self._decoding[0][0] <= self._progress:
                heapq.heappop(self._decoding)[2].fire()
                self.in_flight -= 1
            if self.in_flight == 0:
                self.idle.fire()
        self._next_event()
