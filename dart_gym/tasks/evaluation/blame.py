"""Decide who caused a missing score: the agent, by what it left on its desktop, or the evaluator and its machine. Pure.

An agent that fails must not be able to have its episode left out, and a failure of ours must not be trained on as one
of the agent's. So each failure of an evaluation is decided by what the agent cannot forge:

- what the desktop's own programs did to an operation is a `DesktopStateError` where it is found (in the guest and the
  keeper, by error numbers, limits and what the machine does meanwhile). A getter answers `NOT_THERE` then, as for a
  file that does not exist, and what needs the operation itself is worth 0;
- a metric that fails is run again with states that no agent has made (`metric_control`), a program of a bundle beside
  no files of the agent (`of_the_agent`). It failed by itself when it fails there, too;
- an evaluator that the kernel ends for the machine's memory, or that fails before it has read anything of the desktop,
  is ended by the machine (`ended_by_the_machine`);
- all other failures of the desktop are the environment's.
"""

import signal
from dataclasses import dataclass

NOT_THERE = None
"""What a getter answers in the place of a state that the agent has made unreadable."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program that scores has ended without a score.

    Attributes:
        kind: the exception's name, "signal 9", "late", or what else it ended with.
        reason: for people; it begins with the program's name.
        of_the_desktop: whether it names a file of the desktop that could not be used.
    """

    kind: str
    reason: str
    of_the_desktop: bool = False


def of_the_agent(program: ProgramEnd, control: ProgramEnd | None) -> bool:
    """Return whether a program of a bundle failed by what the agent has left.

    `control` is how it ended beside no files of any agent, and None where it gave a score.
    """
    return program.of_the_desktop or control is None or control.kind != program.kind


def ended_by_the_machine(number: int, *, own_memory: bool, machine_ended: int) -> bool:
    """Return whether a signal that ended an evaluator came from the machine.

    What the agent has left may be a program that a metric runs, which can kill itself. So SIGKILL is the machine's
    only where the kernel has ended processes for memory meanwhile (`machine_ended`), and not since the evaluator's own
    memory was used up (`own_memory`).
    """
    return number == signal.SIGKILL and machine_ended > 0 and not own_memory


def ended_for_memory(vmstat: str) -> int:
    """Return how many processes the kernel has ended for memory since the start, from `/proc/vmstat`. Pure."""
    return next((int(line.split()[1]) for line in vmstat.splitlines() if line.startswith("oom_kill ")), 0)
