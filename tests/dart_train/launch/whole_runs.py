"""Runs of shipped configurations on a machine that is faked as far as it must be: GPUs, and models of billions.

What is overridden is size alone: the model, how much is demonstrated, warmed up, played and tested. Everything that a
configuration says about what runs where, and how it is trained, stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.utils.processes import die_with_parent
from dart_train.config.run_config import RunConfig, load_config
from dart_train.core.demo_models import DEMO_MODELS
from dart_train.core.metrics_log import read_metrics
from dart_train.launch.pipeline import WARM_VERSION
from dart_train.run.run_directory import RunDirectory
from tests.helpers.gpus import H100, gpu_rows
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
HELPERS = ROOT / "tests" / "helpers"
UPDATES_S = 900.0
OSWORLD = {  # name: part of a task; those that cannot run are among them, as in the published set
    "first": {},
    "second": {"config": [{"type": "execute", "parameters": {"command": ["true"]}}]},
    "needs-a-program": {"config": [{"type": "launch", "parameters": {"command": ["absent-program"]}}]},
    "needs-an-account": {"config": [{"type": "googledrive", "parameters": {}}]},
    "needs-a-metric": {"evaluator": {"func": "no_such_metric"}},
    "needs-a-site": {"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.b/"]}}]},
}
RUNNABLE = {"osworld/first", "osworld/second"}


@dataclass
class FakedMachine:
    """Environment of a machine with `gpus` H100s, a `vllm`, OSWorld's tasks and, where asked for, a data base."""

    directory: Path
    gpus: int
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        programs, tasks = self.directory / "bin", self.directory / "evaluation_examples" / "examples" / "os"
        for place in (programs, tasks):
            place.mkdir(parents=True)
        rows = gpu_rows(*[H100] * self.gpus)
        self._program(programs / "nvidia-smi", f"cat <<'ROWS'\n{rows}\nROWS")
        self._program(programs / "vllm", f'exec {sys.executable} {HELPERS / "vllm_program.py"} "$@"')
        for name, parts in OSWORLD.items():
            task = {"id": name, "instruction": "Close the window.", "evaluator": {"func": "infeasible"}, **parts}
            (tasks / f"{name}.json").write_text(json.dumps(task))
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(HELPERS / "faked_machine"),
            "DART_FAKED_GPUS": str(self.gpus),
            "DART_FAKED_SHARES": str(self.directory / "shares"),
            "DART_FAKED_VLLM": str(self.directory / "vllm.jsonl"),
            "DART_VLLM": str(self.directory / "no-vllm"),  # the one on the PATH is taken
            "DART_GYM_OSWORLD": str(tasks.parent),
            "DART_DATA_URL": f"sqlite:///{self.directory}/data.db",
        }

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @property
    def servers(self) -> list[dict[str, Any]]:
        """What each `vllm` was started with."""
        return [json.loads(line) for line in (self.directory / "vllm.jsonl").read_text().splitlines()]

    @property
    def shares(self) -> set[str]:
        """The GPU and the share of its memory of each trainer that shares one."""
        file = self.directory / "shares"
        return set(file.read_text().splitlines()) if file.exists() else set()


def model_for(config: RunConfig, directory: Path) -> str:
    """A model for a configuration whose own is not here: tiny, of the same architecture."""
    named = config.model.path
    if named == "tiny" or named in DEMO_MODELS:
        return named
    if named.startswith("/"):  # of billions
        small = TinyModelConfig(vision_layers=2, max_length=32768)
        return str(build_tiny_model(directory / "model", config=small))
    if config.agent.planner is not None:  # with a head, which a script trains
        torch.manual_seed(0)
        tiny = build_tiny_model(directory / "tiny", config=TinyModelConfig(vision_layers=1))
        return str(PointerModel(tiny, begin="", dtype="float32").save(directory / "model"))
    return "tiny-base"  # that a script fills in


def sizes(config: RunConfig, model: str) -> dict[str, object]:
    """What is overridden of any configuration, so that two updates take a minute."""
    found: dict[str, object] = {
        "model.path": model,
        "rollout.workers": 2,
        "rollout.group_size": 2,
        "trainer.groups_per_step": 2,
        "trainer.save_steps": 1,
        "trainer.torch_threads": 1,
        "data.curation.drop_no_signal": "false",  # an untrained model fails everywhere
        "data.curation.max_staleness": 50,
        "data.curation.min_rollouts": 1,
        "evaluation.episodes": 1,
        "evaluation.beside_episodes": 1,
    }
    if config.demonstrations.per_task:
        found |= {"demonstrations.per_task": 2, "demonstrations.per_task_of": "{}"}
    if config.evaluation.beside:
        found |= {"evaluation.beside": f"[{config.evaluation.beside[0]}]"}
    if config.warmup.limited:
        found |= {"warmup.max_steps": 4, "warmup.batch_size": 4}
    if config.evaluation.monitor.every_rollouts:
        found |= {"evaluation.monitor.every_rollouts": 4, "evaluation.monitor.episodes": 1}
    if config.rollout.engine.kind == "vllm":  # 5 screenshots must fit the positions of the tiny model
        found |= {"agent.max_pixels": 200704, "rollout.max_steps": 2, "rollout.sampling.max_tokens": 16}
    if (config.resources.trainer_ranks or 1) > 1:
        found |= {"resources.trainer_ranks": 2}
    if config.controls.phases:
        found |= {"controls.phases": "{constant-click: {seeds: 2}}"}
    return found


class ConfiguredRun:
    """A run of a shipped configuration, in lives of its launcher."""

    def __init__(self, name: str, machine: FakedMachine, changes: Mapping[str, object] = {}) -> None:
        self.config = CONFIGS / f"{name}.yaml"
        self.machine, self.runs = machine, machine.directory / "runs"
        loaded = load_config(self.config)
        self.changes = {**sizes(loaded, model_for(loaded, machine.directory)), **changes}
        self.run = RunDirectory(self.runs / loaded.name)
        self.log = machine.directory / "launcher.log"

    def begin(self, **more: object) -> subprocess.Popen[bytes]:
        """Start the launcher as a user does."""
        changes = {**self.changes, **{key.replace("__", "."): value for key, value in more.items()}}
        words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "dart_train", "run", str(self.config), "--runs-dir", str(self.runs), "--plain"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*command, *words], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT,
                env=self.machine.environment, start_new_session=True, preexec_fn=die_with_parent(),
            )  # fmt: skip

    @property
    def steps(self) -> list[int]:
        """Optimizer steps that were made, by number."""
        return [row["step"] for row in read_metrics(self.run.metrics("trainer")) if "step" in row]

    @property
    def updates(self) -> int:
        """Number of versions that the reinforcement learning has published."""
        found = [int(path.name[1:]) for path in self.run.checkpoints.glob("v[0-9]*[0-9]")]
        return max(found, default=WARM_VERSION) - WARM_VERSION

    def until_updates(self, life: subprocess.Popen[bytes], wanted: int) -> None:
        """Wait until so many updates are published, and stop in order."""
        wait_until(
            lambda: self.updates >= wanted,
            UPDATES_S,
            trouble=lambda: life.poll() is not None and f"it ended with {life.returncode}: {self.words()}",
            explain=self.words,
            look_s=0.1,
        )
        life.send_signal(signal.SIGINT)
        assert life.wait(120) == 130, self.words()

    def until_the_end(self, life: subprocess.Popen[bytes]) -> None:
        """Wait for everything that comes after the training."""
        assert life.wait(UPDATES_S) == 0, self.words()

    def words(self) -> str:
        """The last words of the launcher and its modules."""
        files = [self.log, *sorted(self.run.logs.glob("*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in files)
