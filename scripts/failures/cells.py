"""The cells of the table: a command in a situation, run as a process of its own, and how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.failures.rows import PLACES, ROWS, Link, Row
from scripts.failures.situations import OF_ITEMS, OF_SERVERS, Situation
from scripts.failures.stub_server import REFUSED_PORT, Protocol, Stub, stub
from scripts.failures.world import CONFIG, PROGRAMS, World, spoil, write_fetch

LIMIT_S = 100.0
EARLY_CPU_S = 0.3
LOOK_S = 0.02
FULL_DISK = "16777216"
FILL = 'cp -a "$1"/. . && shift && { cat /dev/zero >filler 2>/dev/null; exec "$@"; }'
NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
IGNORED = re.compile(
    r"^tmp/torchinductor_\w+|^home/\.(cache|config)/(matplotlib|fontconfig|mesa_shader_cache)|^home/\.(cache|config)$"
)
"""What libraries keep for themselves."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A command in a situation, with one of its servers where it is of one."""

    row: Row
    situation: Situation
    link: Link | None = None

    def __str__(self) -> str:
        return f"{self.row.name}: {self.situation.value}" + (f" ({self.link.name})" if self.link else "")


@dataclass(frozen=True, slots=True)
class End:
    """How a cell ended.

    Attributes:
        status: exit status, 130 for a process that Ctrl-C killed.
        output: all lines.
        made: paths that are there afterwards and were not before.
        seconds: how long it took.
        asked: whether its server was asked for anything, where there is one.
    """

    status: int
    output: str
    made: tuple[str, ...]
    seconds: float
    asked: bool = True

    @property
    def last(self) -> str:
        """The last line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def cells_of(row: Row) -> Iterator[Cell]:
    """Every cell of a row that is run."""
    for situation in Situation:
        if row.reason(situation):
            continue
        if situation in (*OF_SERVERS, *OF_ITEMS) or (situation is Situation.INTERRUPTED and not row.ready):
            links = row.links[:1] if situation in OF_ITEMS or situation is Situation.INTERRUPTED else row.links
            yield from (Cell(row, situation, link) for link in links if situation not in link.reasons)
            if not links:
                yield Cell(row, situation)
        else:
            yield Cell(row, situation)


def every_cell() -> list[Cell]:
    """All cells of the table."""
    return [cell for row in ROWS for cell in cells_of(row)]


def run(cell: Cell, world: World) -> End:
    """Run a cell."""
    with tempfile.TemporaryDirectory(prefix="failures-", ignore_cleanup_errors=True) as folder:
        home, place, scratch = (Path(folder) / name for name in ("home", "place", "tmp"))
        for one in (home, place, scratch):
            one.mkdir()
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(_server(cell))
            port = server.port if server is not None else REFUSED_PORT
            _furnish(cell, place, world, port)
            words = [str(PROGRAMS / cell.row.name.split()[0]), *cell.row.name.split()[1:], *_arguments(cell, port)]
            if cell.situation is Situation.NO_PERMISSION:
                stack.callback(_set_rights, place, writable=True)
                _set_rights(place, writable=False)
            command = _surrounded(cell, words, place, world)
            before = _listing(Path(folder))
            started = time.monotonic()
            status, output = _call(cell, command, place, _environment(cell, home, scratch, port), server)
            made = sorted(_listing(Path(folder)) - before)
        seconds = time.monotonic() - started
        shown = tuple(one for one in made if not IGNORED.match(one))
        return End(status, _steady(output, folder), shown, seconds, server is None or server.asked.is_set())


@contextlib.contextmanager
def _server(cell: Cell) -> Iterator[Stub | None]:
    if cell.link is None or cell.situation is Situation.REFUSED:
        yield None
        return
    situation = Situation.HANGS if cell.situation is Situation.INTERRUPTED else cell.situation
    with stub(cell.link.protocol, situation) as server:
        yield server


def _furnish(cell: Cell, place: Path, world: World, port: int) -> None:
    """Put into the working directory what is there in the situation."""
    if cell.situation is Situation.NOTHING:
        return
    if cell.situation is Situation.WRONG_DIRECTORY:
        (place / "mine.yaml").write_text(CONFIG)
        (place / "other").mkdir()
        (place / "other" / "notes.txt").write_text("notes\n")
        return
    world.need(*cell.row.needs)
    if cell.situation is not Situation.DISK_FULL:
        shutil.copytree(world.root, place, dirs_exist_ok=True, symlinks=True)
    if cell.row.name == "dart-agent import" and cell.situation in OF_ITEMS:
        spoil(place / "results", every=cell.situation is Situation.ALL_LOST)
    if cell.row.name == "dart-gym tasks mirror":
        write_fetch(place / "fetch", f"http://127.0.0.1:{port}", 9 if cell.situation is Situation.SOME_LOST else 1)


def _arguments(cell: Cell, port: int) -> list[str]:
    """The words after the command."""
    row, situation, link = cell.row, cell.situation, cell.link
    kind = {Situation.NOTHING: 1, Situation.WRONG_DIRECTORY: 2}.get(situation, 0)
    places = {name: values[kind] for name, values in PLACES.items()}
    line = row.line if link is None or link.line is None else link.line
    if link is not None:
        line += f" {link.options}"
    if situation in (Situation.DISK_FULL, Situation.NO_PERMISSION) and row.writes:
        line += f" {row.writes}"
    if situation is Situation.SOME_LOST and row.name in ("dart-agent eval", "dart-agent import"):
        line += " --max-lost 0"
    addresses = {"url": f"http://127.0.0.1:{port}", "ws": f"ws://127.0.0.1:{port}", "port": str(port)}
    return shlex.split(line.format(**places, **addresses))


def _environment(cell: Cell, home: Path, scratch: Path, port: int) -> dict[str, str]:
    left_out = ("PYTHONPATH", "PYTHONUNBUFFERED", "FORCE_COLOR", "NO_COLOR", "PYTEST_CURRENT_TEST", "PYTHONWARNINGS")
    there = {name: value for name, value in os.environ.items() if name not in left_out}
    there |= {"HOME": str(home), "TMPDIR": str(scratch), "COLUMNS": "400", "TERM": "dumb"}
    if cell.situation is Situation.NO_TERMINAL:
        del there["TERM"], there["COLUMNS"]
    # without a server what an installer asks refuses at once, and it keeps to its own directory
    link = cell.link or next(iter(cell.row.links), None)
    variables = link.variables if link else {}
    return there | {name: value.format(url=f"http://127.0.0.1:{port}") for name, value in variables.items()}


def _surrounded(cell: Cell, words: list[str], place: Path, world: World) -> list[str]:
    if cell.situation is Situation.NO_PERMISSION and os.geteuid() == 0:
        return [*NO_RIGHTS, *words]
    if cell.situation is Situation.DISK_FULL:
        small = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--size", FULL_DISK, "--tmpfs", str(place)]
        return [*small, "--chdir", str(place), "bash", "-c", FILL, "fill", str(world.root), *words]
    return words


def _set_rights(place: Path, *, writable: bool) -> None:
    for path in (place, *place.rglob("*")):
        if not path.is_symlink():
            path.chmod((0o755 if writable else 0o555) if path.is_dir() else (0o644 if writable else 0o444))


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _call(cell: Cell, command: list[str], place: Path, there: dict[str, str], server: Stub | None) -> tuple[int, str]:
    """Start the program, do to it what the situation says, and return its exit status and its output."""
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        out: int = said.fileno()
        if cell.situation is Situation.OUTPUT_FULL:
            out = stack.enter_context(open("/dev/full", "w")).fileno()
        if cell.situation is Situation.CLOSED_PIPE:
            reader, out = os.pipe()
            os.close(reader)
            stack.callback(os.close, out)
        process = subprocess.Popen(
            command, cwd=place, env=there, stdin=subprocess.DEVNULL, stdout=out, stderr=said, start_new_session=True
        )
        end = time.monotonic() + LIMIT_S
        if cell.situation in (Situation.INTERRUPTED, Situation.INTERRUPTED_EARLY):
            _await(lambda: process.poll() is not None or _is_time(cell, process.pid, said.fileno(), server), end)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        late = ""
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = f"\nno end within {LIMIT_S:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        said.seek(0)
        status = process.returncode
        return (128 - status if status < 0 else status), said.read() + late


def _await(condition: Callable[[], bool], end: float) -> None:
    while not condition() and time.monotonic() < end:
        time.sleep(LOOK_S)


def _is_time(cell: Cell, pid: int, said: int, server: Stub | None) -> bool:
    """Whether the program is where Ctrl-C is to hit it."""
    if cell.situation is Situation.INTERRUPTED_EARLY:
        return _cpu_s(pid) > EARLY_CPU_S
    if cell.row.ready and server is None:
        return cell.row.ready in os.pread(said, 1 << 20, 0).decode(errors="replace")
    return server is not None and server.asked.is_set()


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _steady(text: str, folder: str) -> str:
    """Output without what differs from run to run. Pure."""
    text = text.replace(f"{folder}/place", "DIR").replace(folder, "TMP")
    text = re.sub(r"/tmp/failures-\w+/world", "DIR", text)  # what a run notes of its own place
    text = text.replace(str(PROGRAMS.parents[1]), "CHECKOUT")
    text = re.sub(r"127\.0\.0\.1([:', ]+)(?!9\b)[0-9]{4,5}", r"127.0.0.1\1PORT", text)
    text = re.sub(r"#token=\S+", "#token=KEY", text)
    text = re.sub(r"(?m)^[\w-]{43}$|\b[0-9a-f]{64}\b", "KEY", text)
    text = re.sub(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9:]{8},[0-9]{3} ", "TIME ", text)
    return re.sub(r"\b[0-9]+(\.[0-9]+)? s\b", "N s", text)


__all__ = ["Cell", "End", "Protocol", "cells_of", "every_cell", "run"]
