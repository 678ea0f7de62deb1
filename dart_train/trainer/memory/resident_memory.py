"""The most memory that some work takes on a device: the allocator's own count on a GPU, resident pages on a CPU."""

from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path
from types import TracebackType

import torch

INTERVAL_S = 0.002


def resident_bytes(kinds: tuple[str, ...] = ("RssAnon",)) -> int:
    """Return this process's resident memory of some kinds: `RssAnon` is its own, `RssFile` is mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) << 10


class PeakMemory:
    """Measure the most memory that is taken within a `with` block, beyond what was taken before it.

    Args:
        device: a GPU, or the CPU, where a thread looks at the resident memory every 2 ms.
        kinds: of resident memory, see `resident_bytes`.

    Attributes:
        peak: bytes, once the block has ended.
    """

    def __init__(self, device: torch.device, kinds: tuple[str, ...] = ("RssAnon",)) -> None:
        self._device, self._kinds = device, kinds
        self._before, self._highest = 0, 0
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self.peak = 0

    def __enter__(self) -> PeakMemory:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
            return self
        ctypes.CDLL(None).malloc_trim(0)
        self._before = self._highest = resident_bytes(self._kinds)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            self.peak = torch.cuda.max_memory_allocated(self._device) - self._before
            return
        self._ended.set()
        self._watcher.join()
        self.peak = self._highest - self._before

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._highest = max(self._highest, resident_bytes(self._kinds))
