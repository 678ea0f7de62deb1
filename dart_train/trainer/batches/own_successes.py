"""The run's own successes, from which every optimizer step draws some to imitate once more.

A group leaves the trainer after one step, and a task that mostly succeeds or mostly fails is seldom leased. What it did
right is forgotten meanwhile, as other tasks move the same weights. Episodes that succeeded are kept here by task, and
each step gets whole ones of tasks drawn at random, whose cross-entropy is minimised beside its loss (self-imitation
learning, arXiv 1806.05635, with demonstrations as in DAPG, arXiv 1709.10087).

Invariants:
    - Every task of the run counts the same, however often it is played.
    - What ended since the last step is known to the next: groups without a signal, which no step gets, are there too.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from dart_train.core.train_errors import CorruptDataError
from dart_train.data.insight import statistics
from dart_train.trainer.batches.collator import Sample
from dart_train.trainer.batches.demonstrations import recorded

if TYPE_CHECKING:
    from dart_train.data.manager.run_data import RunData

_log = logging.getLogger(__name__)

KEPT = 16  # successes of each task: the newest, which are nearest to the policy


class OwnSuccesses:
    """Draws episodes of the run's newest successes, with the full reward, as samples without a reward.

    Args:
        data: the run's.
        steps: whole episodes are drawn until they have as many steps; 0 draws none.
        seed: equal seeds draw the same from the same successes.
    """

    def __init__(self, data: RunData, steps: int, seed: int) -> None:
        self._data = data
        self._steps = steps
        self._seed = seed
        self._newest = 0
        self._known: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT))

    def draw(self, serial: int) -> tuple[Sample, ...]:
        """Return the steps of one success of each of some tasks, in the order drawn; `serial` tells draws apart."""
        if not self._steps:
            return ()
        for row in self._data.read(statistics.full_successes, self._newest):
            self._known[row.task_id].append(row.trajectory_id)
            self._newest = row.rollout_id
        rng = random.Random(f"{self._seed}/{serial}")
        drawn: list[Sample] = []
        for number, task in enumerate(rng.sample(sorted(self._known), len(self._known))):
            if len(drawn) >= self._steps:
                break
            name = rng.choice(self._known[task])
            drawn += [replace(sample, trajectory=number) for sample in self._samples(task, name)]
        return tuple(drawn)

    def _samples(self, task: str, name: str) -> list[Sample]:
        """The steps of a success of a task; none where it is damaged, or was removed to save room."""
        try:
            return recorded([self._data.load_whole(name)])
        except CorruptDataError as error:
            _log.warning("a success is not imitated: %s", error)
            self._known[task].remove(name)
            if not self._known[task]:
                del self._known[task]
            return []
