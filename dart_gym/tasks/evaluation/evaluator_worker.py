"""This side of the evaluator worker: starts it in a sandbox, feeds it, limits it, ends it.

The worker (`evaluator_worker_main.py`) runs OSWorld's own getters and metrics. They parse what the agent left, and
some of them execute it, so each evaluation has a worker of its own: a bubblewrap sandbox with no network but relays to
the ports of this one desktop, read-only programs, its own `/tmp`, and the evaluation's cache directory. For a server
that is root it runs as a user of its own, as desktops do.

Invariants:
    - What goes wrong by itself is an `EvaluationFailure` that names it. What goes wrong (a hang, a crash, too much
      memory) by what the agent has left is a `DesktopStateError`; see `blame`.
    - It is ended for its deadline only once it has had the processor time it needs (`patience.ENOUGH_S`). On a busy
      machine it goes on past the deadline, and moves that of the operation with it, by `LONGEST_EXTENSION_S` at most:
      an agent that leaves what is read for ever gains nothing by the load of others.
    - What the task gives (bundle, references, the copy of the desktop's files) is apart from the cache, and read-only.
    - After `close` no process of the worker is left.
    - Without a sandbox it runs only for desktops that the user chose to have without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dart_gym.core import operation_deadline
from dart_gym.core.errors import DesktopStateError, EvaluationFailure, MissingDependencyError
from dart_gym.core.operation_deadline import keep_open, seconds_left
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.desktops.confinement.bubblewrap import (
    WORKSPACE,
    Stage,
    kernel_directories,
    launcher,
    memory_directory,
    missing_parts,
    namespaces,
    shared_limits,
    system_directories,
)
from dart_gym.desktops.confinement.machine_settings import settings_copy
from dart_gym.desktops.confinement.resource_limits import EVALUATION_GROUPS, DesktopLimits, group_name, make_groups
from dart_gym.desktops.confinement.system_calls import system_call_filter
from dart_gym.desktops.confinement.user_ids import take_user_id
from dart_gym.desktops.keeper import patience
from dart_gym.desktops.keeper.held_up import Delay, what_delays
from dart_gym.desktops.keeper.patience import Patience, used_by
from dart_gym.desktops.osworld_api.api_address import CHROMIUM_PORT, VLC_PORT
from dart_gym.tasks.evaluation.blame import ended_by_the_machine, ended_for_memory
from dart_gym.tasks.evaluation.evaluator_environment import EvaluatorEnvironment
from dart_gym.tasks.evaluation.score_rules import Check, Conj

TIMEOUT_S = 90.0
MARGIN_S = 2.0
"""How much earlier than the operation around it an evaluation ends, so that it is the evaluation that says why."""

MEMORY_BYTES = 3 << 30
FILE_BYTES = 1 << 30
SCRATCH_BYTES = 1 << 30
LIMITS = DesktopLimits(memory=MEMORY_BYTES + SCRATCH_BYTES, processes=512)
_VMSTAT = Path("/proc/vmstat")
_SERVER_PORT, SITES_PORT = 5000, 5080
WORKER_PROGRAM = Path(__file__).with_name("evaluator_worker_main.py")
_NEIGHBOURS = tuple(WORKER_PROGRAM.with_name(f"{name}.py") for name in ("desktop_archive", "metric_control"))
_INSIDE = "/run/evaluator"
_CACHE = "/cache"
SCRATCH = "/run/scratch"
GIVEN = f"{_INSIDE}/given"
_GIVEN_REFERENCES = ("bundle/gt", "/tmp/tmp_workspace/gt")
# Getters that ask nothing but the server; others may need DevTools or VLC's web interface.
_SERVER_ONLY = frozenset(
    "rule vm_file vm_command_line vm_command_error cache_file cloud_file content_from_vm_file vm_terminal_output "
    "gimp_config_file vlc_config vscode_config vm_screen_size vm_window_size vm_wallpaper list_directory "
    "accessibility_tree rule_relativeTime".split()
)


class SpoiledFilesError(DesktopStateError):
    """What the desktop handed over is no archive of its files, or more than there is room for."""


class EvaluatorWorker:
    """One worker, for one evaluation with a cache of its own, in `timeout` seconds. An async context manager.

    The time counts from the first answer that is waited for: imports and steps of `postconfig` run beside each other.

    Args:
        given: a directory that its programs see read-only as `GIVEN`, and its `bundle/gt` as `/tmp/tmp_workspace/gt`.
        reaches_desktop: whether it can ask the desktop anything.
    """

    def __init__(
        self,
        desktop: Desktop,
        environment: EvaluatorEnvironment,
        cache: Path,
        *,
        timeout: float = TIMEOUT_S,
        given: Path | None = None,
        reaches_desktop: bool = True,
    ) -> None:
        self._desktop = desktop
        self._environment = environment
        self._cache = cache
        self._timeout = timeout
        self._given = given
        self._reaches_desktop = reaches_desktop
        self._loaded = False
        self._isolated = desktop.spec.sandbox != "none"
        self._process: asyncio.subprocess.Process | None = None
        self._stack = contextlib.AsyncExitStack()
        self._ends_at = math.inf
        self._extended = 0.0
        self._both = Patience(lambda: {self._pid(), *self._keeper()})

    async def __aenter__(self) -> EvaluatorWorker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self, checks: Iterable[Check]) -> None:
        """Start the worker, which imports what the checks need in its time. Raises `MissingDependencyError`."""
        if self._isolated and (reason := missing_parts()) is not None:
            raise MissingDependencyError(reason)
        checks = list(checks)
        configs = [config for check in checks for config in (check.result, check.expected) if config]
        getters = sorted({str(config.get("type")) for config in configs})
        self._desktop_before = self._desktop_seconds()
        self._ended_before = ended_for_memory(_VMSTAT.read_text())
        self._take_user()
        sockets = await self._sockets(getters)
        self._log = self._cache.with_name(self._cache.name + ".log")
        self._stack.callback(self._log.unlink, missing_ok=True)
        self._process = await self._spawn(sockets)
        self._stack.push_async_callback(self._kill)
        metrics = sorted({check.func for check in checks})
        self._send({"op": "load", "metrics": metrics, "getters": getters})

    def _take_user(self) -> None:
        """Become who the worker will be, as far as its files go, and count what it uses."""
        self._user = take_user_id()
        self._stage = Stage(self._user)
        if self._user is not None:
            self._stack.callback(self._user.release)
            os.chown(self._cache, self._user.number, self._user.number)
        record = self._cache.with_name(self._cache.name + ".groups")
        self._counted = make_groups(group_name(EVALUATION_GROUPS, f"{os.getpid()}.{id(self)}"), LIMITS, record)
        self._groups = self._counted.directories
        self._stack.callback(self._counted.remove)
        self._stack.callback(record.unlink, missing_ok=True)

    async def _sockets(self, getters: list[str]) -> dict[str, tuple[Path, int]]:
        """The Unix sockets that the worker may reach, and the ports that they are to its getters."""
        if not self._reaches_desktop:
            return {"server": (self._cache.with_name("none"), _SERVER_PORT)}
        from dart_gym.desktops.osworld_api.api_server import (
            OSWorldAPI,  # its web server costs 0.1 s to import, and most need none
        )

        path = self._cache.with_name(self._cache.name + ".api")
        await self._stack.enter_async_context(OSWorldAPI(self._desktop, path=path))
        sockets = {"server": (path, _SERVER_PORT)}
        if not _SERVER_ONLY.issuperset(getters):
            sockets["chromium"] = (await self._desktop.open_port(CHROMIUM_PORT), CHROMIUM_PORT)
            sockets["vlc"] = (await self._desktop.open_port(VLC_PORT), VLC_PORT)
        for socket, _ in sockets.values():
            if self._user is not None:
                os.chown(socket, self._user.number, self._user.number)  # root can use it nevertheless
        return sockets

    async def _spawn(self, sockets: dict[str, tuple[Path, int]]) -> asyncio.subprocess.Process:
        info_read, info_write = os.pipe()
        self._stack.callback(os.close, info_read)
        self._info_fd = info_read
        program = os.memfd_create("filter")
        os.write(program, system_call_filter(notify=False).program)
        os.lseek(program, 0, os.SEEK_SET)
        command = self._command(sockets, info_write, program)
        try:
            with open(self._log, "wb") as log:
                return await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    cwd="/",
                    env=worker_variables(SCRATCH if self._isolated else str(self._cache)),
                    pass_fds=(info_write, program) if self._isolated else (),
                    start_new_session=True,
                    limit=1 << 22,
                )
        finally:
            os.close(info_write)
            os.close(program)

    def _command(self, sockets: dict[str, tuple[Path, int]], info_fd: int, filter_fd: int) -> list[str]:
        root = self._environment.root
        inside = self._isolated
        seen = self._stage.place
        settings = {
            "sockets": {
                name: (f"{_INSIDE}/{name}.sock" if inside else str(seen(path)), port if inside else 0)
                for name, (path, port) in sockets.items()
            },
            "cache": _CACHE if inside else str(seen(self._cache)),
            "scratch": SCRATCH if inside else str(seen(self._cache)),
            "numba_cache": str(self._environment.numba_cache if inside else seen(self._environment.numba_cache)),
            "memory_bytes": MEMORY_BYTES,
            "file_bytes": FILE_BYTES,
            "processes": LIMITS.processes,
            "sites_port": SITES_PORT,
        }
        main = f"{_INSIDE}/worker_main.py" if inside else str(seen(WORKER_PROGRAM))
        python = root / "bin" / "python"
        program = [str(python if inside else seen(python)), "-I", main, json.dumps(settings)]
        if not inside:
            return [*launcher(self._user, self._groups, self._stage.mounts), *program]
        binds = [("--bind", str(self._cache), _CACHE), ("--ro-bind", str(WORKER_PROGRAM), main)]
        binds += [("--ro-bind", str(path), f"{_INSIDE}/{path.name}") for path in _NEIGHBOURS]
        if self._reaches_desktop:
            binds += [("--ro-bind", str(path), f"{_INSIDE}/{name}.sock") for name, (path, _) in sockets.items()]
        if self._given is not None:
            binds.append(("--ro-bind", str(self._given), GIVEN))
            references, place = _GIVEN_REFERENCES
            if (self._given / references).is_dir():
                binds.append(("--ro-bind", str(self._given / references), place))
        arguments = self._stage.arguments([*_sandbox(self._environment), *(word for bind in binds for word in bind)])
        arguments += ["--info-fd", str(info_fd), "--seccomp", str(filter_fd), "--remount-ro", "/", "--", *program]
        start = launcher(self._user, self._groups, self._stage.mounts, shared_limits())
        return [*start, str(shutil.which("bwrap")), *arguments]

    async def check(self, check: Check, conj: Conj) -> tuple[float, str]:
        """Return a check's score and a short text about the state that it found.

        Raises:
            EvaluationFailure: if there is no score.
        """
        await self._load()
        self._send(
            {
                "op": "check",
                "func": check.func,
                "result": check.result,
                "expected": check.expected,
                "options": check.options,
                "conj": conj,
            }
        )
        where = f"metric {check.func}: "
        reply = self.require_ok(await self._receive(f"metric {check.func}"), where)
        return float(reply["score"]), str(reply["state"])

    async def run(self, name: str, **request: object) -> dict[str, Any]:
        """Run a program (see the worker's `do_program`).

        Raises:
            DesktopStateError: it came to no end, by what the agent has left or by itself.
            EvaluationFailure: the machine has ended it.
        """
        await self._load()
        self._send({"op": "program", **request})
        return self.require_ok(await self._receive(name), f"{name}: ")

    async def _load(self) -> None:
        if not self._loaded:
            left = max(0.0, seconds_left())
            self._timeout = min(self._timeout, left - min(MARGIN_S, left / 10))
            self._ends_at = asyncio.get_running_loop().time() + self._timeout
            self.require_ok(await self._receive("its imports"), "")
            self._loaded = True

    @staticmethod
    def require_ok(reply: dict[str, Any], where: str) -> dict[str, Any]:
        """Return a reply that is not an error.

        Raises:
            SpoiledFilesError: if the desktop's files cannot be read.
            DesktopStateError: if reading them took too much memory.
            EvaluationFailure: if the evaluation failed for another reason.
        """
        if "spoiled" in reply:
            raise SpoiledFilesError(f"{where}{reply['spoiled']}")
        if where and reply.get("error") == "MemoryError":  # no evaluation takes so much, whatever its references are
            raise DesktopStateError(f"{where}{reply['message']}")
        if "error" in reply:
            kind = "" if reply["error"] == "Unavailable" else f"{reply['error']}: "
            raise EvaluationFailure(f"{where}{kind}{reply['message']}")
        return reply

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None  # `start` made it with a pipe
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _receive(self, what: str) -> dict[str, Any]:
        line = await self._line(what)
        if not line:
            raise await self._explain_end(what)
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise self._failure(f"the evaluator answered no JSON in {what}: {line[:200]!r}") from error
        return reply

    async def _line(self, what: str) -> bytes:
        """Return the next line of the worker; past its deadline for as long as it lacks time for its work."""
        assert self._process is not None and self._process.stdout is not None  # `start` made it with a pipe
        while True:
            left = self._ends_at - asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    return await self._process.stdout.readline()
            except TimeoutError:
                had_time = await asyncio.to_thread(self._had_its_time)
            except ValueError as error:
                raise self._failure(f"the evaluator answered too much in {what}") from error
            if had_time or not self._extend():
                limit = f"{self._timeout + self._extended:.3g} s"
                message = f"the evaluation took longer than {limit} (in {what}) and was ended"
                raise self._failure(message, machine=not had_time)

    def _extend(self) -> bool:
        """Move the deadline; return False where it was moved as far as it can be."""
        more = asyncio.get_running_loop().time() - self._ends_at + operation_deadline.LOOK_S
        furthest = operation_deadline.LONGEST_EXTENSION_S
        if self._extended + more > furthest or not keep_open(operation_deadline.LOOK_S + MARGIN_S):
            return False
        self._ends_at += more
        self._extended += more
        return True

    def _had_its_time(self) -> bool:
        """Return whether it is not the machine that had no time for the evaluator, or for the desktop that it asks."""
        own = self._pid()
        if used_by({own}) >= patience.ENOUGH_S:
            return True
        waits = what_delays({own}, overloaded=True) is Delay.WANTS_NOTHING
        if waits and self._desktop_seconds() - self._desktop_before >= patience.ENOUGH_S:
            return True  # it waits for the desktop, which had time
        return self._both.hold_themselves_up()

    def _pid(self) -> int:
        assert self._process is not None  # only called with one
        return self._process.pid

    def _desktop_seconds(self) -> float:
        return used_by(self._keeper())

    def _keeper(self) -> set[int]:
        pid = getattr(self._desktop, "keeper_pid", None)
        return {pid} if isinstance(pid, int) else set()

    def _failure(self, message: str, *, machine: bool = False) -> EvaluationFailure | DesktopStateError:
        """Return the error to raise: the desktop's content caused it, unless nothing was read or the machine failed."""
        return EvaluationFailure(message) if machine or not self._loaded else DesktopStateError(message)

    async def _explain_end(self, what: str) -> EvaluationFailure | DesktopStateError:
        assert self._process is not None  # only called with one
        await self._kill()
        code = self._process.returncode or 0
        number = -code if code < 0 else code - 128  # bwrap reports the signal that ended its child as a shell does
        with contextlib.suppress(ValueError):
            words = f"the evaluator was killed by {signal.Signals(number).name} in {what}{self._last_words()}"
            machine = ended_by_the_machine(
                number,
                own_memory=self._counted.short_of_own_memory(),
                machine_ended=self._ended_meanwhile(),
            )
            return self._failure(words, machine=machine)
        return self._failure(f"the evaluator ended with status {code} in {what}{self._last_words()}")

    def _ended_meanwhile(self) -> int:
        """Return how many processes the kernel has ended for memory, of the evaluator's own where that is counted."""
        if self._groups:
            return self._counted.ended_for_memory()
        return ended_for_memory(_VMSTAT.read_text()) - self._ended_before

    def _last_words(self) -> str:
        words = self._log.read_bytes()[-1500:].decode(errors="replace").strip()
        return f"; its last words: {words}" if words else ""

    async def _kill(self) -> None:
        """End the worker with all its children, and wait until they are gone."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        inner = _inner_pid(self._info_fd) if self._isolated else None
        with contextlib.suppress(ProcessLookupError):
            if inner is not None:  # bwrap ends after the last process inside
                os.kill(inner, signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    async def close(self) -> None:
        """End the worker and its OSWorld API. Idempotent."""
        await self._stack.aclose()


def _inner_pid(info_fd: int) -> int | None:
    """Pid of the first process inside, which bwrap wrote before it started anything; None when it failed before."""
    os.set_blocking(info_fd, False)
    data = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(info_fd, 4096):
            data += chunk
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(data)["child-pid"])
    return None


def worker_variables(scratch: str) -> dict[str, str]:
    """Return the worker's whole environment, with `scratch` as its home directory."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "MPLCONFIGDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _sandbox(environment: EvaluatorEnvironment) -> list[str]:
    args = [*namespaces("evaluator"), *system_directories(settings_copy()), *kernel_directories(SCRATCH_BYTES)]
    args += [*memory_directory("/tmp", SCRATCH_BYTES, "1777"), *memory_directory("/run", SCRATCH_BYTES)]
    args += ["--dir", _INSIDE, "--dir", SCRATCH, *memory_directory("/home/user", SCRATCH_BYTES)]
    args += ["--dir", "/tmp/tmp_workspace", "--symlink", "/tmp/tmp_workspace", WORKSPACE]
    if not environment.base.is_relative_to("/usr"):
        args += ["--ro-bind", str(environment.base), str(environment.base)]
    return [*args, "--ro-bind", str(environment.root), str(environment.root)]
