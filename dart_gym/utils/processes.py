"""Child processes that cannot outlive their parent.

Linux only, like the desktops: `PR_SET_PDEATHSIG` makes the kernel signal a child when its parent dies, however
that happens, `kill -9` included.
"""

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

SUPERVISED = "DART_SUPERVISED"
"""Environment variable of a process that somebody starts again when it fails."""

HOPELESS_STATUS = 78
"""Exit status of a supervised process that would fail again: `EX_CONFIG` of sysexits.h."""

STOPPED_STATUS = 128 + signal.SIGTERM
"""Exit status of a supervised process that was told to stop before its work was done; by Ctrl-C it is another."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn` that ties a child's life to the calling process: to the *thread* that forks, which must last."""
    parent = os.getpid()

    def tie() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:  # the parent died between fork and here
            os._exit(1)

    return tie


def end_with_parent(signum: signal.Signals = signal.SIGKILL) -> None:
    """Tie the calling process to its present parent, for a program that others start without doing so, as torchrun."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum))


def machine_memory() -> tuple[int, int]:
    """Bytes of the machine's memory that are available, and all of them; control groups may allow less."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10, int(lines["MemTotal"].split()[0]) << 10


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of an address of this machine that nobody has at this moment."""
    with socket.socket() as chosen:
        chosen.bind((host, 0))
        return int(chosen.getsockname()[1])


def exit_status(*, hopeless: bool) -> int:
    """Exit status after an error: 1, or `HOPELESS_STATUS` to tell a supervisor that trying again is no use."""
    return HOPELESS_STATUS if hopeless and os.environ.get(SUPERVISED) else 1


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, which with its pid names it for good; None without one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def has_ended(pid: int, started: int, pid_namespace: str | None = None) -> bool:
    """Return whether a process has certainly ended; False in another `pid_namespace`, where that is unknown."""
    return pid_namespace in (None, own_pid_namespace()) and start_time(pid) != started


def own_pid_namespace() -> str:
    """Where this process's pid counts, such as "pid:[4026531836]"."""
    return os.readlink("/proc/self/ns/pid")


def private_memory(pids: Iterable[int]) -> int:
    """Bytes of memory that these processes share with no file and with nobody else, swapped-out ones left aside."""
    pages = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm") as file:
                _, resident, shared, *_ = map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        pages += resident - shared
    return pages * os.sysconf("SC_PAGE_SIZE")


def follow_parent(parent: int | None = None, signum: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel signal this process when its parent dies; if `parent` is dead already, it ends at once."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum))
    if parent is not None and os.getppid() != parent:
        raise SystemExit(0)


def set_process_name(name: bytes) -> None:
    """Have `ps` and `top` show this process under a name of at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name)


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of their ended children; 0 for those that are gone."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
