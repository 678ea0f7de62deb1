"""A real `dart-train run` of the quick start, as a user starts it, and its processes.

Invariants:
    - Run, temporary files and runtime directory lie in one private directory with a short path. Whatever process,
      socket or file is left of the run is found by it, and nothing of anybody else is.
    - The whole run dies with this process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dart_gym.utils.processes import die_with_parent
from dart_train.core.metrics_log import read_metrics
from dart_train.run.run_directory import RunDirectory
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
CONFIG = ROOT / "configs" / "quickstart.yaml"
NAME = "overnight"

SHORT_SETUP = (
    f"name={NAME}",
    "demonstrations.per_task=0",
    "warmup.max_steps=0",
    "evaluation.episodes=1",
    "evaluation.greedy=false",
    "evaluation.beside=[]",
    "controls.supervised=false",
    "controls.phases={}",
)
"""The quick start with next to nothing before the reinforcement learning, which begins from the shipped model."""

ENDLESS = (
    "rollout.budget_rollouts=10000000",
    "data.curation.drop_no_signal=false",  # a barely warmed-up policy is to give the trainer work at once
    "trainer.image_cache_mb=8",  # full at once: a cache that fills is no growth
    "trainer.save_steps=2",  # a killed trainer repeats at most so many steps
)
MODULES = {"run": "launcher", "data": "data", "rollout": "rollout", "learn": "learn"}
INTERRUPTED = 130


@dataclass
class OvernightRun:
    """The run under test.

    Args:
        place: its private directory.

    Attributes:
        launcher: its process of the moment.
        starts: how often it was started.
    """

    place: Path
    launcher: subprocess.Popen[bytes] | None = None
    starts: int = 0
    overrides: tuple[str, ...] = field(default=SHORT_SETUP + ENDLESS)

    @property
    def runs_dir(self) -> Path:
        """Directory of the runs."""
        return self.place / "runs"

    @property
    def scratch(self) -> Path:
        """Temporary and runtime directory of all its processes: sockets, desktops, displays."""
        return self.place / "t"

    @property
    def directory(self) -> RunDirectory:
        """The run's directory."""
        return RunDirectory(self.runs_dir / NAME)

    @property
    def log(self) -> Path:
        """What the launcher says."""
        return self.place / "launcher.log"

    def start(self) -> None:
        """Give the command; the same one every time."""
        for path in (self.runs_dir, self.scratch):
            path.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "dart_train", "run", str(CONFIG), "--runs-dir", str(self.runs_dir), "--plain"]
        for override in self.overrides:
            command += ["--set", override]
        environment = {**os.environ, "TMPDIR": str(self.scratch), "XDG_RUNTIME_DIR": str(self.scratch)}
        with self.log.open("ab") as log:
            self.launcher = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )
        self.starts += 1

    def interrupt(self, patience_s: float = 120.0) -> int:
        """Ctrl-C; return the exit status."""
        assert self.launcher is not None
        self.launcher.send_signal(signal.SIGINT)
        return self.launcher.wait(patience_s)

    def ended(self) -> str:
        """Why it is over although nobody asked for that; "" while it goes on."""
        if self.launcher is None or self.launcher.poll() is None:
            return ""
        tail = self.log.read_text(errors="replace").splitlines()[-25:]
        return f"the run ended by itself with {self.launcher.returncode}:\n" + "\n".join(tail)

    def modules(self) -> dict[str, psutil.Process]:
        """The living processes of the run by module; those of desktops are the cluster's descendants."""
        return {name: process for process in self.processes() if (name := module_name(process))}

    def processes(self) -> Iterator[psutil.Process]:
        """Every living process that has the private directory on its command line."""
        for process in psutil.process_iter(["cmdline", "status"]):
            dead = process.info["status"] in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            if not dead and any(str(self.place) in word for word in process.info["cmdline"] or ()):
                yield process

    def trained_steps(self) -> int:
        """Optimizer steps that the trainer has reported, repeated ones included."""
        return sum(1 for _ in read_metrics(self.directory.metrics("trainer")))

    def wait_until(self, condition, seconds: float, what: str) -> None:
        """Wait for a condition of the running run."""
        wait_until(condition, seconds, trouble=self.ended, explain=lambda: f"no sign of {what}", look_s=0.2)


def module_name(process: psutil.Process) -> str | None:
    """Which module a process is; None for none of them."""
    words = process.info["cmdline"] or []
    if words[1:3] == ["-m", "dart_train"] and len(words) > 3:
        return MODULES.get("".join(words[5:6]) if words[3] == "process" else words[3])
    if words[1:3] == ["-m", "dart_gym.commands.gym_cli"]:
        return "cluster"
    if words[1:3] == ["-m", "dart_agent.engines.remote.engine_server"] and "--name" in words:
        return f"engine-{words[words.index('--name') + 1]}"
    return None


@contextmanager
def overnight_run() -> Iterator[OvernightRun]:
    """The run in a private directory, which is removed afterwards, whatever happened."""
    place = Path(tempfile.mkdtemp(prefix="dart-night-"))
    run = OvernightRun(place)
    try:
        yield run
    finally:
        if run.launcher is not None and run.launcher.poll() is None:
            run.launcher.kill()
            run.launcher.wait()
        for process in list(run.processes()):
            process.kill()
        shutil.rmtree(place, ignore_errors=True)
