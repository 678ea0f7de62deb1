"""Placement on GPUs: what a run needs of n GPUs (`demand`), and which ones it gets on one machine (`place`). Pure.

Invariants:
    - What a configuration names is given exactly or refused with the numbers; only what it leaves out is chosen.
    - A GPU that somebody else uses is never taken, and ranks, or the GPUs of one replica, are of one kind.
    - Engines and trainer have GPUs of their own, unless they share them, with a part of the memory each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dart_agent.engines.engine_kinds import ENGINES
from dart_train.config.run_config import RunConfig
from dart_train.core.train_errors import DartTrainError
from dart_train.placement.gpu_discovery import GPU

ENGINE_MEMORY, SHARED_ENGINE_MEMORY = 0.9, 0.4
"""Shares of a GPU's memory that a replica takes: alone on it, and beside the trainer."""
SHARED_SPARE = 0.05
"""Share of a GPU that two processes have for themselves beside what they take of its memory: contexts, libraries."""
OUR_TRAINER = "dart_grpo"


class PlacementError(DartTrainError):
    """The GPUs or cores do not do for a run; the message has what it wants, what there is, and what to change."""

    hopeless = True


@dataclass(frozen=True, slots=True)
class Demand:
    """What a run takes, wherever that is.

    Attributes:
        replicas: engines that are started; 0 where they run elsewhere.
        engine_gpus: of each; 0 for the CPU.
        ranks: processes that train together.
        trainer_gpus: of all ranks together: one each, or 0 for the CPU.
        shared: whether engines and trainer have the same GPUs.
        engine_memory: share of its GPUs' memory that a replica takes.
        trainer_nodes: that the ranks are spread over.
        monitor_gpus: of the monitor's own engine; 0 without a monitor, or for the CPU.
        sharded: whether ranks hold parts of the model (`fsdp`).
    """

    replicas: int
    engine_gpus: int
    ranks: int
    trainer_gpus: int
    shared: bool
    engine_memory: float
    trainer_nodes: int = 1
    monitor_gpus: int = 0
    sharded: bool = False

    @property
    def warmup_ranks(self) -> int:
        """Number of processes that warm up together: the ranks of one node if they shard the model, otherwise one."""
        return self.ranks // self.trainer_nodes if self.sharded else 1

    @property
    def trainer_memory(self) -> float:
        """Share of a GPU's memory that a rank may take."""
        return 1 - self.engine_memory - SHARED_SPARE if self.shared else 1.0

    @property
    def gpus(self) -> int:
        """How many it takes in all."""
        for_engines = self.replicas * self.engine_gpus
        together = max(for_engines, self.trainer_gpus) if self.shared else for_engines + self.trainer_gpus
        return together + self.monitor_gpus


@dataclass(frozen=True, slots=True)
class Placement:
    """What runs where on one machine.

    Attributes:
        demand: what was asked for.
        engines: indices of the GPUs of each replica; an empty tuple for one on the CPU.
        trainer: index of each rank's GPU; empty for the CPU.
        cores: of the desktops; empty for all.
        monitor: indices of the GPUs of the monitor's engine; empty without one, or for the CPU.
    """

    demand: Demand
    engines: tuple[tuple[int, ...], ...]
    trainer: tuple[int, ...]
    cores: tuple[int, ...] = ()
    monitor: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """Return what a person is told when a run starts."""
        demand = self.demand
        engines = "engines run elsewhere"
        if demand.replicas:
            of = f"GPU {' | '.join(_listed(one) for one in self.engines)}" if demand.engine_gpus else "the CPU"
            engines = f"{demand.replicas} engine{'s' * (demand.replicas > 1)} on {of}"
        trainer = f"GPU {_listed(self.trainer)}" if self.trainer else "the CPU"
        ranks = f" in {demand.ranks} ranks" if demand.ranks > 1 else ""
        ranks += f" on {demand.trainer_nodes} nodes" if demand.trainer_nodes > 1 else ""
        shares = f" (engines take {demand.engine_memory:.0%} of its memory)" if demand.shared else ""
        cores = f"; desktops on cores {_listed(self.cores)}" if self.cores else ""
        monitor = f"; the monitor's engine on GPU {_listed(self.monitor)}" if self.monitor else ""
        return f"{engines}; trainer on {trainer}{ranks}{shares}{monitor}{cores}"


def demand(config: RunConfig, gpus: int) -> Demand:
    """Return what a run takes of `count` GPUs.

    Args:
        config: the run.
        gpus: of the machine or of all machines, those that are free.

    Raises:
        PlacementError: its numbers contradict one another.
    """
    wanted, engine = config.resources, config.rollout.engine
    kind = ENGINES.get(engine.kind)
    replicas = 0 if engine.urls else engine.replicas
    each = wanted.engine_gpus
    if each is None or replicas == 0:
        each = 1 if kind.computes_on_gpus and gpus and replicas != 0 else 0
    cpu = config.trainer.use_cpu is True
    ranks = wanted.trainer_ranks
    monitors = each if config.evaluation.monitor.every_rollouts else 0
    here, gpus = gpus, max(gpus - monitors, 0)
    shared = wanted.share_gpus
    if shared is None:
        shared = gpus == 1 and each == 1 and (ranks or 1) == (replicas or 1) == 1
    shared = shared and each > 0 and not cpu
    if ranks is None:
        ranks = _free_ranks(config, gpus, each, replicas, shared=shared) if here and not cpu else 1
        least = wanted.trainer_nodes * _context(config)
        ranks = max(ranks - ranks % least, least)
    elif ranks % wanted.trainer_nodes:
        raise PlacementError(
            f"resources.trainer_ranks {ranks} are not equally many on each of resources.trainer_nodes "
            f"{wanted.trainer_nodes}: set a multiple of it"
        )
    if replicas is None:
        replicas = max((gpus - (0 if shared or cpu else ranks)) // each, 1) if each else 1
    on_gpus = not cpu and (here > 0 or wanted.trainer_ranks is not None)
    sharded = config.trainer.kind == OUR_TRAINER and bool(config.trainer.fsdp)
    if sharded and ranks == 1:
        raise PlacementError(
            f"trainer.fsdp shards the model among ranks, and there is one ({_count(here)}): set "
            "resources.trainer_ranks to 2 or more, or trainer.fsdp to false"
        )
    if ranks // wanted.trainer_nodes % _context(config):
        raise PlacementError(
            f"trainer.context_parallel {_context(config)} does not divide the {ranks // wanted.trainer_nodes} ranks of "
            "a machine: set it to a divisor of them, or resources.trainer_ranks to a multiple"
        )
    memory = wanted.engine_memory or (SHARED_ENGINE_MEMORY if shared else ENGINE_MEMORY)
    trainer_gpus = ranks if on_gpus else 0
    return Demand(replicas, each, ranks, trainer_gpus, shared, memory, wanted.trainer_nodes, monitors, sharded)


def _context(config: RunConfig) -> int:
    """Return how many ranks share each row."""
    return config.trainer.context_parallel if config.trainer.kind == OUR_TRAINER and config.trainer.fsdp else 1


def _free_ranks(config: RunConfig, gpus: int, each: int, replicas: int | None, *, shared: bool) -> int:
    """How many ranks a configuration that does not say gets: what engines leave, or half."""
    if config.trainer.kind != OUR_TRAINER or (each == 0 and replicas != 0):
        return 1  # a model that engines serve on the CPU is small
    if shared:
        return gpus
    return max(gpus // 2 if replicas is None else gpus - replicas * each, 1)


def place(config: RunConfig, gpus: Sequence[GPU], cores: Sequence[int] = ()) -> Placement:
    """Split the GPUs and cores of one machine.

    Args:
        config: the run.
        gpus: of this machine, the occupied ones as well.
        cores: that this process may use.

    Raises:
        PlacementError: there are too few, or not enough of one kind.
    """
    free = [gpu for gpu in gpus if not gpu.occupied]
    wanted = demand(config, len(free))
    if wanted.trainer_nodes > 1:
        raise PlacementError("resources.trainer_nodes above 1 is for a Ray cluster: give --ray, or set it to 1")
    if wanted.gpus > len(free):
        occupied = [gpu for gpu in gpus if gpu.occupied]
        used = ", ".join(f"GPU {g.index}: {g.used_mb / 1024:.1f} of {g.memory_mb / 1024:.1f} GiB" for g in occupied)
        by_others = f", {len(occupied)} of them in use by others ({used}; `nvidia-smi` says by whom)" if used else ""
        raise PlacementError(too_few(wanted, len(gpus), by_others))
    kinds = [list(same) for _, same in groupby(sorted(free, key=_kind), key=_kind)]
    for_both = wanted.gpus - wanted.monitor_gpus
    trainer = _take(kinds, for_both if wanted.shared else wanted.trainer_gpus, "trainer_ranks", free)
    rest = kinds
    if wanted.shared:
        kinds, trainer = [list(trainer)], trainer[: wanted.trainer_gpus]
    engines = [_take(kinds, wanted.engine_gpus, "engine_gpus", free) for _ in range(wanted.replicas)]
    monitor = _take(rest, wanted.monitor_gpus, "engine_gpus", free)
    pinned = config.resources.desktop_cores
    if pinned is not None and cores and pinned > len(cores):
        raise PlacementError(f"resources.desktop_cores is {pinned}, and this machine has {len(cores)}: lower it")
    return Placement(
        wanted,
        tuple(tuple(gpu.index for gpu in one) for one in engines),
        tuple(gpu.index for gpu in trainer),
        tuple(cores[-pinned:]) if pinned is not None else (),
        tuple(gpu.index for gpu in monitor),
    )


def _kind(gpu: GPU) -> tuple[int, str]:
    return -gpu.memory_mb, gpu.name


def _take(kinds: list[list[GPU]], count: int, key: str, free: Sequence[GPU]) -> list[GPU]:
    """Remove `count` GPUs of one kind from the lists, from the largest kind that has enough."""
    for kind in kinds if count else [[]]:
        if len(kind) >= count:
            taken, kind[:] = kind[:count], kind[count:]
            return taken
    here = ", ".join(f"{len(list(same))} x {name}" for (_, name), same in groupby(sorted(free, key=_kind), key=_kind))
    raise PlacementError(
        f"resources.{key}: {count} GPUs of one kind are wanted, and {here} are free, some of them taken by others of "
        "the run: kinds that differ would wait for the slowest; set numbers that one kind has"
    )


def too_few(wanted: Demand, gpus: int, by_others: str = "") -> str:
    """Return what is said of a machine that has too few GPUs for a run."""
    for_engines = f"{wanted.replicas} x {wanted.engine_gpus} for engines" if wanted.engine_gpus else "none for engines"
    together = " on the same ones" if wanted.shared else ""
    together += f", {wanted.monitor_gpus} for the monitor's engine" if wanted.monitor_gpus else ""
    together += "" if wanted.shared and not wanted.monitor_gpus else f", {wanted.gpus} in all"
    return (
        f"this run wants GPUs: {for_engines}, {wanted.trainer_gpus} for the trainer{together}; "
        f"{_count(gpus)}{by_others}: lower rollout.engine.replicas, resources.engine_gpus or resources.trainer_ranks, "
        "or take another configuration"
    )


def _count(gpus: int) -> str:
    return f"this machine has {gpus or 'no'} GPU{'s' * (gpus > 1)}"


def _listed(numbers: Sequence[int]) -> str:
    """Numbers with ranges: "0-3,6"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
