"""Scores by a program that came with a task (`reward.py`, `check.sh`), in the evaluator worker's sandbox.

What such a program has, and nothing else: a copy of the desktop's files at their paths (/home/user, /tmp,
/tmp_workspace), its bundle in $DART_BUNDLE, the command `desktop run PROGRAM ...` (on the desktop, as its user),
OSWorld's server at $DART_DESKTOP_URL, the states of the desktop's mock sites at `SITES_URL`, and the evaluator's Python
packages. There is no network.

Invariants:
    - The desktop never sees the program or its references ("gt"), and nothing is executed on this side.
    - What the desktop hands over is data (`desktop_archive`): it becomes files below /home/user and /tmp, which hold
      nothing else. Program, references and commands lie elsewhere and are read-only, also for the program itself.
    - A score is a number in [0, 1] that was printed as documented by a program that ended well. A program that fails
      is run again without any files of the agent: one that fails there, too, is an evaluation error with its reason
      (but not one that fails for want of anything to look at), and one that does not is a score of 0, for it has
      failed by what the agent left.
"""

import asyncio
import contextlib
import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DartGymError, DesktopError, DesktopStateError, EvaluationFailure
from dart_gym.core.outcomes import Evaluation, EvaluationStatus
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.evaluation.blame import ProgramEnd, for_want_of_anything, of_the_agent
from dart_gym.tasks.evaluation.evaluator import cache_directory, judged
from dart_gym.tasks.evaluation.evaluator_worker import (
    GIVEN,
    SCRATCH,
    SCRATCH_BYTES,
    SITES_PORT,
    TIMEOUT_S,
    EvaluatorWorker,
    SpoiledFilesError,
)
from dart_gym.tasks.evaluation.watched_desktop import watch
from dart_gym.tasks.setup.setup_runner import run_steps
from dart_gym.tasks.setup.site_steps import site_host

EVALUATOR = "bundle/1.0"
SITES_URL = f"http://127.0.0.1:{SITES_PORT}"
"""Where such a program finds `/<site>/go`: the state of a mock site when the scoring began."""
REFERENCES = "tmp/tmp_workspace/gt"
FILES, SITES = "files.tar", "sites"
CONTROL_S = 20.0
_COMMAND = Path(__file__).with_name("desktop_command")
# Caches can be large, and sockets cannot be copied; tar's status is 1 where a file changed meanwhile.
SNAPSHOT = """d=$(mktemp -d /tmp/.reward-XXXXXX) && cd / && /bin/tar -cf "$d/files" --hard-dereference \
--exclude='.reward-*' --exclude=.cache --exclude=.X11-unix --exclude='*/Cache' --exclude='*/Code Cache' \
home/user tmp 2>/dev/null
echo "$d" """
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")  # the last line of a traceback
_LINE = re.compile(r'File "[^"\n]*/bundle/[^"\n]*", line (\d+)')
_DESKTOP_FILE = re.compile(
    r"Errno \d+\].*'/(?:home/user|tmp|tmp_workspace)/"
    r"|: ['\"]?/(?:home/user|tmp|tmp_workspace)/[^:]*: (?:No such|Permission|Is a dir|Not a dir|Too many levels)"
)
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)"
_LAST_LINE = re.compile(rf"(?:(?:REWARD|Total score): *)?({_NUMBER})\s*(?:/ *1(?:\.0*)?)?", re.IGNORECASE)


def is_foreign(evaluator: dict[str, Any]) -> bool:
    """Return whether a task's evaluator is a program of its bundle: {"type": "python", "url": "./reward.py"}."""
    return evaluator.get("type") in ("python", "bash")


async def run_reward(
    desktop: Desktop, evaluator: dict[str, Any], bundle: Path, *, timeout: float = TIMEOUT_S
) -> Evaluation:
    """Carry out `postconfig` on the desktop, then run the bundle's program."""
    script, watched = str(evaluator.get("url", "")).removeprefix("./"), watch(desktop)
    try:
        if desktop.spec.sandbox == "none":
            raise EvaluationFailure(f"{script} is another's program and runs in a sandbox only, which was switched off")
        async with judged():
            with cache_directory() as cache:
                await run_steps(watched, evaluator.get("postconfig") or [], cache=cache)
                given = cache.with_name("given")
                await asyncio.to_thread(_lay_out, bundle, given)
                (given / FILES).write_bytes(await _snapshot(watched))
                sites = {site: await site_host(watched).site_state(site) for site in desktop.spec.sites}
                program = _Program(script, evaluator["type"], given, evaluator_environment.find())
                _give_sites(given, sites)
                found = await program.run(watched, cache, timeout, FILES)
                watched.check()
                if isinstance(found, ProgramEnd):
                    _give_sites(given, {name: _untouched(state) for name, state in sites.items()})
                    control = await program.run(watched, cache, min(timeout, CONTROL_S), "", reaches_desktop=False)
                    if not of_the_agent(found, control if isinstance(control, ProgramEnd) else None):
                        raise EvaluationFailure(found.reason)
                    raise DesktopStateError(f"{found.reason}; it does not without what the agent has left")
                score, detail = found
    except DesktopStateError as error:
        return Evaluation(EvaluationStatus.OK, 0.0, EVALUATOR, str(error))
    except DesktopError as error:
        return Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, EVALUATOR, str(error))
    except DartGymError as error:
        return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, EVALUATOR, str(error))
    return Evaluation(EvaluationStatus.OK, score, EVALUATOR, detail)


@dataclass(frozen=True, slots=True)
class _Program:
    """A bundle's program, of a kind of evaluator, with the directory of what it is given."""

    script: str
    kind: str
    given: Path
    environment: evaluator_environment.EvaluatorEnvironment

    async def run(
        self, desktop: Desktop, cache: Path, timeout: float, files: str, *, reaches_desktop: bool = True
    ) -> tuple[float, str] | ProgramEnd:
        """Run it beside the desktop's `files`, or none; its score and detail, or how it ended without one.

        Raises:
            DesktopStateError: the files are no archive of a desktop's files, or do not fit.
            EvaluationFailure: the machine has ended it.
        """
        start = ["/bin/bash"] if self.kind == "bash" else [str(self.environment.python), "-I"]
        worker = EvaluatorWorker(
            desktop, self.environment, cache, timeout=timeout, given=self.given, reaches_desktop=reaches_desktop
        )
        async with worker:
            await worker.start([])
            try:
                reply = await worker.run(
                    self.script,
                    command=[*start, f"{GIVEN}/bundle/{self.script}"],
                    files=f"{GIVEN}/{files}" if files else "",
                    apart=[REFERENCES],
                    most_bytes=SCRATCH_BYTES,
                    sites=f"{GIVEN}/{SITES}",
                    variables=_variables(self.environment.root),
                )
            except SpoiledFilesError:
                raise
            except DesktopStateError as error:
                return ProgramEnd("ended", str(error))
        return read_end(self.script, self.kind, reply["status"], reply["output"], reply["errors"])


def _untouched(states: dict[str, Any]) -> dict[str, Any]:
    return {**states, "current_state": states.get("initial_state"), "state_diff": {}}


def _give_sites(given: Path, states: dict[str, Any]) -> None:
    for site, state in states.items():
        (given / SITES / site).mkdir(parents=True, exist_ok=True)
        (given / SITES / site / "go").write_text(json.dumps(state))


def _variables(environment: Path) -> dict[str, str]:
    return {
        "PATH": f"{GIVEN}/bin:{environment}/bin:/usr/bin:/bin",
        "HOME": "/home/user",
        "DART_BUNDLE": f"{GIVEN}/bundle",
        "TMPDIR": SCRATCH,
        "DART_DESKTOP_URL": "http://127.0.0.1:5000",
        "PYTHONNOUSERSITE": "1",  # nothing that the agent left is imported
        "PYTHONSAFEPATH": "1",
    }


async def _snapshot(desktop: Desktop) -> bytes:
    made = await desktop.execute(["/bin/sh", "-c", SNAPSHOT], timeout=60.0)
    folder = made.stdout.decode(errors="replace").strip()
    if not re.fullmatch(r"/tmp/\.reward-\w+", folder):
        raise DesktopStateError(
            f"the desktop's files could not be copied: {made.stderr.decode(errors='replace')[-300:]}"
        )
    try:
        return await desktop.read_file(f"{folder}/files")
    except OSError as error:
        raise DesktopStateError(f"the desktop's files could not be copied: {error}") from error
    finally:
        with contextlib.suppress(DesktopStateError):
            await desktop.execute(["rm", "-rf", folder], timeout=30.0)


def _lay_out(bundle: Path, given: Path) -> None:
    """Make the directory of what the program is given: its bundle with the references, and the command `desktop`."""
    shutil.copytree(bundle, given / "bundle", copy_function=shutil.copyfile)
    (given / "bin").mkdir()
    (given / SITES).mkdir()
    shutil.copyfile(_COMMAND, given / "bin" / "desktop")
    for path in (given / "bundle", given / "bin" / "desktop"):
        path.chmod(0o755)


def read_end(script: str, kind: str, status: int | None, output: str, errors: str) -> tuple[float, str] | ProgramEnd:
    """Return score and detail of what a program printed, or how it ended without a score. Pure."""
    try:
        if status is None:
            raise EvaluationFailure(f"{script}: {errors}")
        return read_score(script, kind, status, output, errors)
    except EvaluationFailure as failure:
        said = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
        raised = _RAISED.match(said) if "Traceback (most recent call last)" in errors else None
        exception = raised[1].rpartition(".")[2] if raised else ""
        last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
        return ProgramEnd(
            f"{exception or f'status {status}'} {_LINE.findall(errors)[-1:]}",
            str(failure),
            bool(_DESKTOP_FILE.search(said)),
            status is not None and for_want_of_anything(status, exception, said, last),
        )


def read_score(script: str, kind: str, status: int, output: str, errors: str) -> tuple[float, str]:
    """Parse a program's output: "REWARD: 0.5" as its last line, or a JSON with `overall_score`.

    Pure.

    Raises:
        EvaluationFailure: if it holds no score.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()] or [""]
    said = next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
    if status and (kind == "bash" or status != 1 or "Traceback (most recent call last)" in errors):
        raise EvaluationFailure(f"{script} ended with status {status}: {said[:300] or lines[-1][:300]}")
    value: Any = None
    if kind == "bash":
        try:
            value = json.loads(lines[-1])["overall_score"]
        except (ValueError, TypeError, KeyError):
            pass
    elif found := _LAST_LINE.fullmatch(lines[-1]):
        value = float(found[1])
    if isinstance(value, bool) or not isinstance(value, int | float):
        wanted = '{"overall_score": 0.5, ...}' if kind == "bash" else "REWARD: 0.5"
        raise EvaluationFailure(f"{script} must print {wanted} as its last line, not {lines[-1][:120]!r}")
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise EvaluationFailure(f"{script} gave {value}, which is no score in [0, 1]")
    return float(value), " | ".join(lines[-6:])[:600]
