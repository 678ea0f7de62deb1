"""Episodes of the run from which every optimizer step draws some to imitate once more.

A group leaves the trainer after one step, and a task that mostly succeeds or mostly fails is seldom leased. What is
right in its states is forgotten meanwhile, as other tasks move the same weights. So each step also minimises the
cross-entropy of whole episodes, of tasks drawn at random:

- own successes: what the policy itself did (self-imitation learning, arXiv 1806.05635, with demonstrations as in DAPG,
  arXiv 1709.10087);
- pages that the oracle showed, since a whole group had failed on them (`dart_train.rollout.play.shown_pages`);
- lessons: what a teacher would have done in the states of a failure. DAgger trains on the data of all iterations
  together (arXiv 1011.0686); without this each answer is seen in one step alone.

Invariants:
    - Every task of the run counts the same, however often it is played, and of a task every seed: the members of a
      group begin from one screen, so that a task's newest sixteen successes may show three screens. Of what was shown
      every page counts the same: a task that fails more often was shown more.
    - What ended since the last step is known to the next: groups without a signal, which no step gets, are there too.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa

from dart_agent.episodes.trajectory import Trajectory
from dart_train.core.train_errors import CorruptDataError
from dart_train.data.insight import statistics
from dart_train.trainer.batches.collator import Sample
from dart_train.trainer.batches.demonstrations import recorded
from dart_train.trainer.batches.members import lessons_of

if TYPE_CHECKING:
    from dart_train.data.manager.run_data import RunData
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of episodes that are rehearsed.

    Attributes:
        find: those of a run with a higher number than the given one, oldest first.
        samples: what is imitated of an episode.
        by_task: whether every task counts the same; otherwise every episode does.
    """

    name: str
    find: Callable[[sa.Connection, str, int], list[statistics.EpisodeOf]]
    samples: Callable[[Trajectory], list[Sample]]
    by_task: bool = True


OWN_SUCCESSES = Kind("a success", statistics.full_successes, lambda episode: recorded([episode]))
SHOWN_PAGES = Kind("a shown page", statistics.shown_episodes, lambda episode: recorded([episode]), by_task=False)
LESSONS = Kind("a taught failure", statistics.taught_episodes, lessons_of)


class EpisodesOfTask:
    """The episodes of one task that are drawn from: the newest of the newest seeds."""

    SEEDS = 64
    OF_A_SEED = 16

    def __init__(self) -> None:
        self._by_seed: dict[int, deque[str]] = {}

    def add(self, seed: int, name: str) -> None:
        """Take in an episode, newer than all others; those of the seed that was played longest ago may go for it."""
        names = self._by_seed.pop(seed, None) or deque(maxlen=self.OF_A_SEED)
        names.append(name)
        self._by_seed[seed] = names  # at the end: seeds stand in the order in which they were played last
        if len(self._by_seed) > self.SEEDS:
            del self._by_seed[next(iter(self._by_seed))]

    def draw(self, rng: random.Random) -> str:
        """Return an episode of a seed, each with equal chances."""
        return rng.choice(self._by_seed[rng.choice(list(self._by_seed))])

    def remove(self, name: str) -> None:
        """Forget an episode."""
        for seed, names in list(self._by_seed.items()):
            if name in names:
                names.remove(name)
                if not names:
                    del self._by_seed[seed]

    def __len__(self) -> int:
        return sum(map(len, self._by_seed.values()))


class RehearsedEpisodes:
    """Draws episodes of one kind, as samples without a reward.

    Args:
        data: the run's.
        kind: which episodes, and what of them.
        steps: whole episodes are drawn until they have as many steps; 0 draws none.
        seed: equal seeds draw the same from the same episodes.
    """

    def __init__(self, data: RunData, kind: Kind, steps: int, seed: int) -> None:
        self._data = data
        self._kind = kind
        self._steps = steps
        self._seed = seed
        self._newest = 0
        self._known: defaultdict[str, EpisodesOfTask] = defaultdict(EpisodesOfTask)

    def draw(self, serial: int) -> tuple[Sample, ...]:
        """Return the steps of whole episodes, in the order drawn; `serial` tells draws apart.

        One of each task, then another one of each, until there are enough; no episode twice.
        """
        if not self._steps:
            return ()
        for row in self._data.read(self._kind.find, self._newest):
            self._known[row.task_id if self._kind.by_task else ""].add(row.seed, row.trajectory_id)
            self._newest = row.rollout_id
        rng = random.Random(f"{self._seed}/{serial}")
        drawn: list[Sample] = []
        taken: set[str] = set()
        while len(drawn) < self._steps and len(taken) < sum(map(len, self._known.values())):
            for task in rng.sample(sorted(self._known), len(self._known)):
                if len(drawn) >= self._steps:
                    break
                name = self._known[task].draw(rng)
                if name not in taken and (own := self._samples(task, name)) is not None:
                    drawn += [replace(sample, trajectory=len(taken)) for sample in own]
                    taken.add(name)
        return tuple(drawn)

    def _samples(self, task: str, name: str) -> list[Sample] | None:
        """The steps of an episode of a task; None where it is damaged or was removed, and is forgotten."""
        try:
            return self._kind.samples(self._data.load_whole(name))
        except CorruptDataError as error:
            _log.warning("%s is not imitated: %s", self._kind.name, error)
            self._known[task].remove(name)
            if not self._known[task]:
                del self._known[task]
            return None


class Rehearsal:
    """What one optimizer step rehearses: episodes of each kind, with numbers of their own.

    Args:
        data: the run's.
        successes: steps of own successes for each optimizer step, at least.
        shown: steps of pages that the oracle showed, likewise.
        lessons: steps that a teacher answered, likewise.
        seed: see `RehearsedEpisodes`.
    """

    def __init__(self, data: RunData, *, successes: int = 0, shown: int = 0, lessons: int = 0, seed: int = 0) -> None:
        make = partial(RehearsedEpisodes, data, seed=seed)
        self._kinds = (
            make(OWN_SUCCESSES, steps=successes),
            make(SHOWN_PAGES, steps=shown),
            make(LESSONS, steps=lessons),
        )

    @classmethod
    def of(cls, args: DartGRPOConfig, data: RunData) -> Rehearsal:
        """Return what the settings of a trainer rehearse."""
        imitates = args.supervised_coef and not args.shuffle_rewards  # which success is real is reward, too
        successes = args.self_imitation_rows if imitates else 0
        lessons = args.teacher_rehearsed_rows if args.teacher_when != "never" else 0
        shown = args.shown_rows if args.supervised_coef else 0
        return cls(data, successes=successes, shown=shown, lessons=lessons, seed=args.seed)

    def draw(self, serial: int) -> tuple[Sample, ...]:
        """Return the samples of a step; `serial` tells draws apart."""
        drawn: list[Sample] = []
        for kind in self._kinds:
            first = 1 + max((sample.trajectory for sample in drawn), default=-1)
            drawn += [replace(sample, trajectory=first + sample.trajectory) for sample in kind.draw(serial)]
        return tuple(drawn)
