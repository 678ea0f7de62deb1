"""Scores by a program that came with a task (`reward.py`, `check.sh`), in the evaluator worker's sandbox.

What such a program has, and nothing else: a copy of the desktop's files at their paths (/home/user, /tmp,
/tmp_workspace), its bundle in $DART_BUNDLE, the command `desktop run PROGRAM ...` (on the desktop, as its user),
OSWorld's server at $DART_DESKTOP_URL, the states of the desktop's mock sites at `SITES_URL`, and the evaluator's Python
packages. There is no network.

Invariants:
    - The desktop never sees the program or its references ("gt"), and nothing is executed on this side.
    - A score is a number in [0, 1] that was printed as documented by a program that ended well. Anything else (an
      exception, garbage, nan, a limit) is an evaluation error with its reason, never 0.
"""

import json
import math
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

from dart_gym.core.errors import DartGymError, DesktopError, EvaluationFailure
from dart_gym.core.outcomes import Evaluation, EvaluationStatus
from dart_gym.desktops.base.desktop import Desktop
from dart_gym.tasks.evaluation import evaluator_environment
from dart_gym.tasks.evaluation.evaluator import cache_directory
from dart_gym.tasks.evaluation.evaluator_worker import SITES_PORT, TIMEOUT_S, EvaluatorWorker
from dart_gym.tasks.setup.setup_runner import run_steps
from dart_gym.tasks.setup.site_steps import site_host

EVALUATOR = "bundle/1.0"
SITES_URL = f"http://127.0.0.1:{SITES_PORT}"
"""Where such a program finds `/<site>/go`: the state of a mock site when the scoring began."""
REFERENCES = "tmp/tmp_workspace/gt"
_INSIDE = "/cache"
_COMMAND = Path(__file__).with_name("desktop_command")
# Caches can be large, and sockets cannot be copied; tar's status is 1 where a file changed meanwhile.
_SNAPSHOT = """d=$(mktemp -d /tmp/.reward-XXXXXX) && cd / && /bin/tar -cf "$d/files" --exclude='.reward-*' \
--exclude=.cache --exclude=.X11-unix --exclude='*/Cache' --exclude='*/Code Cache' home/user tmp 2>/dev/null
echo "$d" """
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?)"
_LAST_LINE = re.compile(rf"(?:(?:REWARD|Total score): *)?({_NUMBER})\s*(?:/ *1(?:\.0*)?)?", re.IGNORECASE)


def is_foreign(evaluator: dict[str, Any]) -> bool:
    """Whether a task's evaluator is a program of its bundle: {"type": "python" or "bash", "url": "./reward.py"}."""
    return evaluator.get("type") in ("python", "bash")


async def run_reward(
    desktop: Desktop, evaluator: dict[str, Any], bundle: Path, *, timeout: float = TIMEOUT_S
) -> Evaluation:
    """Carry out `postconfig` on the desktop, then run the bundle's program."""
    script = str(evaluator.get("url", "")).removeprefix("./")
    try:
        if desktop.spec.sandbox == "none":
            raise EvaluationFailure(f"{script} is another's program and runs in a sandbox only, which was switched off")
        with cache_directory() as cache:
            await run_steps(desktop, evaluator.get("postconfig") or [], cache=cache)
            (cache / "files.tar").write_bytes(await _snapshot(desktop))
            _lay_out(bundle, cache)
            for site in desktop.spec.sites:
                (cache / "sites" / site).mkdir(parents=True)
                (cache / "sites" / site / "go").write_text(json.dumps(await site_host(desktop).site_state(site)))
            async with EvaluatorWorker(
                desktop, (found := evaluator_environment.find()), cache, timeout=timeout
            ) as worker:
                await worker.start([])
                program = ["/bin/bash"] if evaluator["type"] == "bash" else [str(found.python), "-I"]
                reply = await worker.run(
                    script,
                    command=[*program, f"{_INSIDE}/bundle/{script}"],
                    archives=[(f"{_INSIDE}/files.tar", []), (f"{_INSIDE}/references.tar", [f"/{REFERENCES}"])],
                    variables=_variables(found.root),
                )
        score, detail = read_score(script, evaluator["type"], reply["status"], reply["output"], reply["errors"])
    except DesktopError as error:
        return Evaluation(EvaluationStatus.ENVIRONMENT_ERROR, None, EVALUATOR, str(error))
    except DartGymError as error:
        return Evaluation(EvaluationStatus.EVALUATION_ERROR, None, EVALUATOR, str(error))
    return Evaluation(EvaluationStatus.OK, score, EVALUATOR, detail)


def _variables(environment: Path) -> dict[str, str]:
    return {
        "PATH": f"{_INSIDE}/bin:{environment}/bin:/usr/bin:/bin",
        "HOME": "/home/user",
        "DART_BUNDLE": f"{_INSIDE}/bundle",
        "DART_DESKTOP_URL": "http://127.0.0.1:5000",
        "PYTHONNOUSERSITE": "1",  # nothing that the agent left is imported
        "PYTHONSAFEPATH": "1",
    }


async def _snapshot(desktop: Desktop) -> bytes:
    made = await desktop.execute(["/bin/sh", "-c", _SNAPSHOT], timeout=60.0)
    folder = made.stdout.decode(errors="replace").strip()
    try:
        return await desktop.read_file(f"{folder}/files")
    except OSError as error:
        raise EvaluationFailure(f"the desktop's files could not be copied: {error}") from error
    finally:
        await desktop.execute(["rm", "-rf", folder], timeout=30.0)


def _lay_out(bundle: Path, cache: Path) -> None:
    """Put into the evaluation's directory what the program is given: its bundle, references, the command `desktop`."""
    shutil.copytree(bundle, cache / "bundle", copy_function=shutil.copyfile)
    (cache / "bin").mkdir()
    shutil.copyfile(_COMMAND, cache / "bin" / "desktop")
    for path in (cache / "bundle", cache / "bin" / "desktop"):
        path.chmod(0o755)
    with tarfile.open(cache / "references.tar", "w") as archive:
        if (bundle / "gt").is_dir():
            archive.add(bundle / "gt", REFERENCES)


def read_score(script: str, kind: str, status: int, output: str, errors: str) -> tuple[float, str]:
    """Score and detail of what a program printed: "REWARD: 0.5" as its last line, or a JSON with `overall_score`.

    Pure. Raises `EvaluationFailure`: there is no score in it.
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
