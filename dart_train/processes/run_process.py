"""One process of a run, by its name: a phase, or one of those that run side by side in the reinforcement learning.

`evaluate` and `report` are commands of their own, because they are useful by themselves.

Invariants:
    - An option that the process does not take is refused before anything starts; it is never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest
from dart_train.config.added_phases import added_phases
from dart_train.processes.process_context import ProcessContext
from dart_train.rollout.settings.rollout_config import EnginePlaces


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line that some processes take.

    Attributes:
        plain: log lines instead of a live dashboard.
        engine_gpus: GPUs of each engine, as the command line names them.
        gpu_memory: share of its GPUs' memory that the process may take.
    """

    plain: bool = False
    engine_gpus: list[str] = field(default_factory=list)
    gpu_memory: float | None = None

    @property
    def places(self) -> EnginePlaces:
        """The engines' GPUs. Raises `ConfigurationError` if they are written wrongly."""
        return EnginePlaces.parse(self.engine_gpus, self.gpu_memory)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that every run can have.

    Attributes:
        run: does its work; it imports what it needs (torch, for some) when it runs.
        takes: the options that it takes, as the command line spells them.
    """

    run: Callable[[ProcessContext, Options], None]
    takes: Collection[str] = ()


def _prepare(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import prepare

    prepare.main(context)


def _demonstrate(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import demonstrate

    demonstrate.main(context)


def _warm_up(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import warmup

    warmup.main(context)


def _train_supervised(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import warmup

    warmup.main(context, control=True)


def _manage_data(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import manage_data

    manage_data.main(context)


def _roll_out(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import rollout

    rollout.main(context, plain=options.plain, places=options.places)


def _learn(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import learn

    learn.main(context, gpu_memory=options.gpu_memory)


def _monitor(context: ProcessContext, options: Options) -> None:
    from dart_train.processes import monitor

    monitor.main(context, places=options.places)


OWN: dict[str, Process] = {
    "prepare": Process(_prepare),
    "demonstrate": Process(_demonstrate, ("--url",)),
    "warmup": Process(_warm_up),
    "data": Process(_manage_data),
    "rollout": Process(_roll_out, ("--url", "--plain", "--engine-gpus", "--gpu-memory")),
    "learn": Process(_learn, ("--gpu-memory",)),
    "monitor": Process(_monitor, ("--url", "--engine-gpus", "--gpu-memory")),
    "supervised": Process(_train_supervised),
}


def main(context: ProcessContext, name: str, options: Options, given: Collection[str] = ()) -> None:
    """Run one process.

    Args:
        context: of the process.
        name: of the process.
        options: of the command line.
        given: those of the options, and of the shared ones, that not every process takes and the user wrote.

    Raises:
        ConfigurationError: if the run has no process of this name, or the process does not take an option.
    """
    added = added_phases(context.config.controls.phases)
    if name not in OWN and name not in added:
        raise ConfigurationError(
            f"controls.phases does not name the phase {name!r}, nor is a process of this name built in; "
            f"{suggest(name, [*OWN, *added])}"
        )
    process = OWN.get(name) or Process(lambda context, _: added[name].main(context), ("--url",))
    for option in given:
        if option not in process.takes:
            takers = ", ".join(one for one, own in OWN.items() if option in own.takes)
            raise ConfigurationError(f"the process {name} takes no {option}; it is an option of {takers}")
    process.run(context, options)
