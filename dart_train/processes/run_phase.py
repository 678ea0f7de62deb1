"""One phase of a run in a process: one of the run's own, or one that a package adds.

The other phases of `dart-train run` are commands of their own, because they are useful by themselves: `evaluate`,
`report`, and the processes of the reinforcement learning.
"""

from collections.abc import Callable

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest
from dart_train.config.added_phases import added_phases
from dart_train.processes.process_context import ProcessContext


def _prepare(context: ProcessContext) -> None:
    from dart_train.processes import prepare

    prepare.main(context)


def _demonstrate(context: ProcessContext) -> None:
    from dart_train.processes import demonstrate

    demonstrate.main(context)


def _warm_up(context: ProcessContext) -> None:
    from dart_train.processes import warmup

    warmup.main(context)


def _train_supervised(context: ProcessContext) -> None:
    from dart_train.processes import warmup

    warmup.main(context, control=True)


OWN: dict[str, Callable[[ProcessContext], None]] = {
    "prepare": _prepare,
    "demonstrate": _demonstrate,
    "warmup": _warm_up,
    "supervised": _train_supervised,
}
"""The phases that every run can have; each imports what it needs (torch, for some) when it runs."""


def main(context: ProcessContext, phase: str) -> None:
    """Run one phase.

    Raises:
        ConfigurationError: if the run has no phase of this name.
    """
    added = added_phases(context.config.controls.phases)
    if phase in OWN:
        OWN[phase](context)
    elif phase in added:
        added[phase].main(context)
    else:
        raise ConfigurationError(
            f"controls.phases does not name the phase {phase!r}, nor is it built in; {suggest(phase, [*OWN, *added])}"
        )
