"""Run one check in a process of its own: `python -m dart_train.gpu_check.check_process FUNCTION SETTING OUTPUT`.

A CUDA error leaves its process unusable, an exhausted device can abort it, and a hung NCCL call never returns. Each of
these is one failed row of the table.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from dart_gym.core.project_pages import page
from dart_gym.utils.processes import die_with_parent
from dart_train.gpu_check.check_list import Check
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status

LAST_WORDS = 400
"""Most characters of a failed process's last error line that are shown."""


def run_check(check: Check, setting: CheckSetting) -> list[Outcome]:
    """Run a check and return its outcomes; whatever ends the process is an outcome too."""
    with tempfile.TemporaryDirectory(prefix="dart-check-") as place:
        output, said = Path(place) / "outcomes.json", Path(place) / "stderr"
        command = [sys.executable, "-m", __spec__.name, check.function, json.dumps(setting.as_values()), str(output)]
        with said.open("wb") as errors:
            # A session of its own, so that ranks and servers of a check that hangs end with it.
            process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env=_environment(),
                preexec_fn=die_with_parent(),
            )
            try:
                status = process.wait(check.limit_s)
            except subprocess.TimeoutExpired:
                return [Outcome(check.name, Status.FAILED, f"no result after {check.limit_s:.0f} s", advice=_advice())]
            finally:
                _end(process)
        if output.is_file():
            return [Outcome.read(value) for value in json.loads(output.read_text())]
        return [Outcome(check.name, Status.FAILED, _how_it_ended(status, said), advice=_advice())]


def _environment() -> dict[str, str]:
    """The environment of a check: the settings under which a run trains."""
    return {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a check with all processes of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # every process of it has ended
    process.wait()


def _how_it_ended(status: int, said: Path) -> str:
    """Return the exit status, or the signal, and the last line of the process's errors."""
    lines = said.read_text(errors="replace").strip().splitlines()
    last = lines[-1][:LAST_WORDS] if lines else "it said nothing"
    ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"{ended}: {last}"


def _advice() -> str:
    return f"run it alone with --only, and see {page('guides/one_node')}"


def main() -> None:
    """Run the named check and write its outcomes."""
    function, setting, output = sys.argv[1:4]
    module, _, name = function.partition(":")
    outcomes = getattr(importlib.import_module(module), name)(CheckSetting.read(json.loads(setting)))
    Path(output).write_text(json.dumps([item.as_values() for item in outcomes]))


if __name__ == "__main__":
    main()
