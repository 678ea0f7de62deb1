"""Decide who caused a missing score: the agent, by what it left on its desktop, or the evaluator and its machine. Pure.

An agent that fails must not be able to have its episode left out, and a failure of ours must not be trained on as one
of the agent's. So each failure of an evaluation is decided by what the agent cannot forge:

- what the desktop's own programs did to an operation is a `DesktopStateError` where it is found (in the guest and the
  keeper, by error numbers, limits and what the machine does meanwhile). A getter answers `NOT_THERE` then, as for a
  file that does not exist, and what needs the operation itself is worth 0;
- a metric that fails is run again with states that no agent has made (`metric_control`), a program of a bundle beside
  no files of the agent (`of_the_agent`). It failed by itself when it fails there, too, and not in a way in which
  programs fail where they find nothing (`for_want_of_anything`): an agent can always leave nothing;
- an evaluator that the kernel ends for the machine's memory, or that fails before it has read anything of the desktop,
  is ended by the machine (`ended_by_the_machine`);
- all other failures of the desktop are the environment's.
"""

import re
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
        for_want: whether programs end like this where they find nothing (`for_want_of_anything`).
    """

    kind: str
    reason: str
    of_the_desktop: bool = False
    for_want: bool = False


def of_the_agent(program: ProgramEnd, control: ProgramEnd | None) -> bool:
    """Return whether a program of a bundle failed by what the agent has left.

    `control` is how it ended beside no files of any agent, and None where it gave a score.
    """
    return program.of_the_desktop or program.for_want or control is None or control.kind != program.kind


_FOR_WANT = frozenset(
    "AssertionError CalledProcessError EOFError IndexError JSONDecodeError StatisticsError StopIteration "
    "ZeroDivisionError".split()
)
_NOTHING = re.compile(r"NoneType|\bempty\b|''|not enough values|at least one|no data|zero-size", re.IGNORECASE)
_MOST_STATUS = 125  # a shell's for programs that are missing, and for signals, are above


def for_want_of_anything(status: int, raised: str, said: str, output: str) -> bool:
    """Return whether a program has ended as programs do that find nothing to look at. Pure.

    Args:
        status: its exit status.
        raised: the name of the exception that ended it, or "".
        said: the last line of its errors, or "".
        output: the last line of its output, or "".
    """
    if raised:
        return raised in _FOR_WANT or _NOTHING.search(said) is not None
    if output.lower().endswith("nan"):
        return True  # the mean of no values
    return 0 <= status <= _MOST_STATUS and not said and not output  # a verdict without words


def ended_by_the_machine(number: int, *, own_memory: bool, machine_ended: int) -> bool:
    """Return whether a signal that ended an evaluator came from the machine.

    What the agent has left may be a program that a metric runs, which can kill itself. So SIGKILL is the machine's
    only where the kernel has ended processes for memory meanwhile (`machine_ended`: of the evaluator's control group,
    and of the machine only where there is none, for a desktop can have its own programs ended), and not since the
    evaluator's own memory was used up (`own_memory`).
    """
    return number == signal.SIGKILL and machine_ended > 0 and not own_memory


def ended_for_memory(vmstat: str) -> int:
    """Return how many processes the kernel has ended for memory since the start, from `/proc/vmstat`. Pure."""
    return next((int(line.split()[1]) for line in vmstat.splitlines() if line.startswith("oom_kill ")), 0)
