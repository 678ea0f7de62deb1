"""Memory of a trainer on this machine's CPU, compared with the estimate of `rank_memory`.

Each measurement is a process for each rank. It first trains a tiny model, so that libraries are loaded and their memory
is taken; what the model of the measured size takes beyond that is measured as the most resident memory at any moment.
glibc gives large blocks back at once (`MALLOC_MMAP_THRESHOLD_`), so that what was freed does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dart_agent.engines.kinds.vllm_server import free_port
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.outcomes import TerminalState
from dart_lab.gym.own_processes import module_command, own_environment
from dart_lab.reporting.report import Aim, Report
from dart_train.core.train_errors import DartTrainError
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.files.trajectory_files import image_hash
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import RankMemory, Setting, Work, rank_memory

SIZES = {
    "2m": TinyModelConfig(
        hidden_size=128, layers=6, heads=4, intermediate_size=512, vision_hidden_size=64, vision_layers=3,
        vision_intermediate_size=192,
    ),
    "8m": TinyModelConfig(
        hidden_size=256, layers=6, heads=4, intermediate_size=1024, vision_hidden_size=128, vision_layers=4,
        vision_intermediate_size=384,
    ),
    "20m": TinyModelConfig(
        hidden_size=384, layers=7, heads=4, intermediate_size=1536, vision_hidden_size=160, vision_layers=4,
        vision_intermediate_size=512,
    ),
}  # fmt: skip
"""Models by their numbers of weights, roughly."""
LOADED = TinyModelConfig(
    hidden_size=768,
    layers=8,
    heads=8,
    intermediate_size=2048,
    vision_hidden_size=128,
    vision_layers=3,
    vision_intermediate_size=384,
)
"""A model that ranks read their parts of: 58 million weights, so that libraries' own memory does not show."""
SCREEN = (224, 336)
ROWS, TOKENS = 4, 512
"""Trajectories of one step each that a lease holds, and tokens of a micro-batch: one row."""
_SETTINGS = {
    "use_cpu": True, "beta": 0.0, "top_entropy_quantile": 1.0, "groups_per_step": 1, "max_steps": 2,
    "save_strategy": "no", "publish_steps": 9, "torch_threads": 1, "report_to": "none", "micro_batch_tokens": TOKENS,
}  # fmt: skip

CASES: Mapping[str, tuple[int, dict[str, Any]]] = {
    "plain": (1, {}),
    "two_ranks": (2, {}),
    "checkpointing": (1, {"gradient_checkpointing": True}),
    "adapter": (1, {"use_peft": True}),
    "reference": (1, {"beta": 0.1}),
}
"""Ranks and switches of a benchmark. Offloading is to the host, where all of a trainer on the CPU already is."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement.

    Attributes:
        peak: most bytes that a rank took.
        planned: what it was said to take.
    """

    peak: int
    planned: RankMemory

    @property
    def ratio(self) -> float:
        """Planned over measured."""
        return self.planned.peak / self.peak


def compare(name: str, progress: Callable[[str], None]) -> Report:
    """Measure a size with every switch whose memory is the host's.

    Args:
        name: of the size, a key of `SIZES`.
        progress: is told what is measured.
    """
    keys: dict[str, float] = {}
    aims: dict[str, Aim] = {}
    for case, (ranks, settings) in CASES.items():
        progress(f"{case}: {ranks} rank{'s' * (ranks > 1)}, {settings or 'no switch'}")
        with tempfile.TemporaryDirectory() as scratch:
            found = measure(name, ranks, Path(scratch), **settings)
        keys |= {f"{case}_peak_mb": found.peak / 2**20, f"{case}_planned_mb": found.planned.peak / 2**20}
        keys[f"{case}_planned_off"] = abs(found.ratio - 1)
        aims[f"{case}_planned_off"] = Aim(0.15, at_most=True)
    note = "peaks are of the rank that takes most, beyond what its libraries take; off is |planned / measured - 1|"
    return Report("memory", keys, aims, [note])


def measure(name: str, ranks: int, scratch: Path, **settings: Any) -> Measured:
    """Train two steps with a number of ranks, and compare.

    Args:
        name: of the size, a key of `SIZES`.
        ranks: with more than one the model is sharded.
        scratch: a directory for models and runs.
        settings: of the trainer, over those of the measurement.

    Raises:
        DartTrainError: a process ended with an error.
    """
    model_dir = build_tiny_model(scratch / "model", config=SIZES[name])
    tiny = build_tiny_model(scratch / "tiny")
    _record(scratch / "warm", tiny)
    _record(scratch / "run", model_dir)
    shared = _SETTINGS | {"fsdp": ranks > 1 or None} | settings
    places = [str(scratch / part) for part in ("warm", "tiny", "run", "model")]
    _run_ranks([*places, str(scratch / "peak"), json.dumps(shared)], ranks)
    peak = max(int((scratch / f"peak{rank}").read_text()) for rank in range(ranks))
    return Measured(peak, planned(ModelSize.of_directory(model_dir), ranks, shared))


def planned(size: ModelSize, ranks: int, settings: Mapping[str, Any]) -> RankMemory:
    """Return the plan of this benchmark's trainer."""
    patches = (SCREEN[0] // 14) * (SCREEN[1] // 14)
    setting = Setting(
        ranks=ranks,
        sharded=ranks > 1,
        checkpointing=bool(settings.get("gradient_checkpointing")),
        lora_rank=settings.get("lora_r", 16) if settings.get("use_peft") else 0,
        trains_tower=not settings.get("use_peft"),
        reference=bool(settings["beta"]) and not settings.get("use_peft"),
    )
    work = Work(TOKENS, 16, images=1, image_patches=patches, recurring=False)
    return rank_memory(size, setting, work)


def host_copy(ranks: int, scratch: Path) -> tuple[float, float]:
    """Most MiB that a rank takes while it reads its parts of a model and of a reference, and what these parts are.

    Args:
        ranks: that share the model.
        scratch: a directory for it.
    """
    build_tiny_model(scratch / "tiny")
    size = ModelSize.of_directory(build_tiny_model(scratch / "model", config=LOADED))
    _run_ranks(["load", str(scratch / "tiny"), str(scratch / "model"), str(scratch / "peak")], ranks)
    peak = max(int((scratch / f"peak{rank}").read_text()) for rank in range(ranks))
    return peak / 2**20, 2 * 4 * (size.language / ranks + size.tower) / 2**20


def _run_ranks(arguments: list[str], ranks: int) -> None:
    """This module as a process for each rank."""
    group = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(free_port()), "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    running = []
    for rank in range(ranks):
        own = (
            group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if ranks > 1
            else {key: value for key, value in group.items() if "_" not in key or key.startswith(("MALLOC", "OMP"))}
        )
        command = module_command("dart_lab.train.memory_bench", *arguments)
        running.append(
            subprocess.Popen(
                command, env={**own_environment(), **own}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
        )
    said = [process.communicate(timeout=600)[1].decode(errors="replace") for process in running]
    for process, text in zip(running, said, strict=True):
        if process.returncode:
            raise DartTrainError(f"a measured trainer ended with {process.returncode}: {text.strip()[-800:]}")


def _record(root: Path, model_dir: Path) -> None:
    """A group of `ROWS` trajectories of one step with a screenshot each, of almost `TOKENS` tokens."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    rng = np.random.default_rng(0)
    with _open(root) as data:
        for number in range(ROWS):
            image = rng.integers(0, 256, (*SCREEN, 3), dtype=np.uint8)
            name = image_hash(image)
            response = tuple(tokens.response("Action: wait()"))
            shown = [tokens.vision_start_id, *[tokens.image_pad_id] * vision.num_tokens(image), tokens.vision_end_id]
            text = tokens.encode("a" * (TOKENS - len(shown) - len(response)))
            step = Step((*text, *shown), (name,), response, (-6.0,) * len(response), (0, 0))
            trajectory = Trajectory(
                trajectory_id=uuid.uuid4().hex,
                run_id="run",
                task_id="fake/click",
                task_hash="0" * 16,
                instruction="Click",
                seed=0,
                group_key="g",
                terminal=TerminalState.DONE,
                score=float(number % 2),
                steps=(step,),
            )
            data.record(trajectory, {name: image})


def _open(root: Path) -> DataManager:
    curation = CurationConfig(group_size=ROWS, max_staleness=None)
    return DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "run", config=curation)


def _train(root: Path, model_dir: Path, settings: Mapping[str, Any]) -> None:
    """Two steps on the same lease."""
    from dart_train.trainer import DartGRPOConfig, DartGRPOTrainer

    with _open(root) as data:
        config = DartGRPOConfig(
            output_dir=str(root / "trainer"), **settings, num_iterations=2, old_logprobs="behaviour"
        )
        DartGRPOTrainer(model_dir, config, data).run()


def _load(model_dir: Path) -> list[Any]:
    """This rank's parts of a model and of a reference."""
    import torch

    from dart_train.trainer.weights.ranks import Ranks
    from dart_train.trainer.weights.sharding import Cut, load_sharded

    cut = Cut(torch.device("cpu"), Ranks.current())
    return [load_sharded(model_dir, cut), load_sharded(model_dir, cut, lambda model: model.requires_grad_(False))]


def main() -> None:
    """One rank of a measurement."""
    import torch

    from dart_train.trainer.memory.resident_memory import PeakMemory

    if sys.argv[1] == "load":
        import torch.distributed as dist

        tiny, model, peak_file = sys.argv[2:5]
        dist.init_process_group("gloo")
        _load(Path(tiny))
        held: list[Any] = []
        with PeakMemory(torch.device("cpu")) as memory:
            held.extend(_load(Path(model)))
        Path(f"{peak_file}{os.environ['RANK']}").write_text(str(memory.peak))
        dist.destroy_process_group()
        return
    warm, first, run, measured = map(Path, sys.argv[1:5])
    settings = json.loads(sys.argv[6])
    _train(warm, first, settings)
    with PeakMemory(torch.device("cpu"), ("RssAnon", "RssFile")) as memory:  # frozen weights are mapped
        _train(run, measured, settings)
    Path(f"{sys.argv[5]}{os.environ.get('RANK', '0')}").write_text(str(memory.peak))


if __name__ == "__main__":
    main()
