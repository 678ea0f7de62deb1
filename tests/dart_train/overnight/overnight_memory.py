"""What memory and processor the modules take over time, and whether that grows.

A killed module begins small again: growth is looked for within the lives of its processes, and what all lives of a
module show together is what counts. Pure, but for `Sampler`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import psutil

from dart_gym.utils.processes import private_memory
from tests.dart_train.overnight.overnight_run import OvernightRun

INTERVAL_S = 5.0
WARM_UP_S = 300.0
"""Age from which a process has met everything once. A trainer of batches of all lengths grows for 250 seconds, by an
allocator that keeps what it was given back, from 640 to 750 MB, and stays there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One module at one moment.

    Attributes:
        t: Unix time.
        module: its name; "desktops" for all of them together.
        pid: of its process; the cluster's for "desktops".
        age_s: of that process.
        bytes: private memory. What libraries share depends on who else has loaded them, so it is left out.
        cpu_s: processor seconds of its life.
    """

    t: float
    module: str
    pid: int
    age_s: float
    bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How a module's memory develops with the age of its processes, after their warm-up.

    Attributes:
        mean_mb: over all samples.
        mb_per_hour: slope that all lives have in common.
        longest_s: longest stretch that was looked at.
        relative: growth over that stretch as a share of the mean.
        early_mb: median of the first third of the measurement.
        late_mb: of the last third.
    """

    mean_mb: float
    mb_per_hour: float
    longest_s: float
    relative: float
    early_mb: float
    late_mb: float


def growth(samples: Iterable[Sample], warm_up_s: float = WARM_UP_S) -> Growth | None:
    """Fit one slope to all lives of a module, each with a level of its own; None where too little was seen.

    Args:
        samples: of one module.
        warm_up_s: age before which nothing counts.
    """
    lives: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.age_s >= warm_up_s:
            lives[sample.pid].append(sample)
    used = [life for life in lives.values() if len(life) >= 3]
    if not used:
        return None
    ages = np.concatenate([_centred([sample.age_s for sample in life]) for life in used])
    sizes = np.concatenate([_centred([sample.bytes for sample in life]) for life in used])
    slope = float(ages @ sizes / (ages @ ages))
    longest = max(life[-1].age_s - life[0].age_s for life in used)
    flat = sorted((sample for life in used for sample in life), key=lambda sample: sample.t)
    values = np.array([sample.bytes for sample in flat])
    third = max(1, len(flat) // 3)
    return Growth(
        mean_mb=float(values.mean()) / 1e6,
        mb_per_hour=slope * 3600 / 1e6,
        longest_s=longest,
        relative=slope * longest / float(values.mean()),
        early_mb=float(np.median(values[:third])) / 1e6,
        late_mb=float(np.median(values[-third:])) / 1e6,
    )


def _centred(values: list[float]) -> np.ndarray:
    array = np.array(values, dtype=np.float64)
    return array - array.mean()


@dataclass
class Sampler:
    """Looks at the run's processes in a thread of its own. A context manager.

    Attributes:
        samples: what was seen.
        load: (Unix time, runnable threads of the machine over the last minute, share of the processors in use).
        seen: every process of the run that was met, as (pid, time of its start).
    """

    run: OvernightRun
    samples: list[Sample] = field(default_factory=list)
    load: list[tuple[float, float, float]] = field(default_factory=list)
    seen: set[tuple[int, float]] = field(default_factory=set)
    failure: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _work(self) -> None:
        psutil.cpu_percent()
        try:
            while not self._stop.wait(INTERVAL_S):
                self._look()
        except Exception as error:  # told by the test, which would wait for nothing otherwise
            self.failure = error

    def _look(self) -> None:
        now = time.time()
        self.load.append((now, os.getloadavg()[0], psutil.cpu_percent() / 100))
        for name, process in self.run.modules().items():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._take(now, name, process, [process])
                if name == "cluster":
                    self._take(now, "desktops", process, process.children(recursive=True))

    def _take(self, now: float, name: str, owner: psutil.Process, members: list[psutil.Process]) -> None:
        cpu = 0.0
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                self.seen.add((member.pid, member.create_time()))
                times = member.cpu_times()
                cpu += times.user + times.system
        size = private_memory(member.pid for member in members)
        self.samples.append(Sample(now, name, owner.pid, now - owner.create_time(), size, cpu))
