"""This machine against a run: GPUs, drivers, programs, the engine's package, memory and disk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dart_agent.engines.vllm import vllm_environment
from dart_gym.desktops.sandbox.sandbox_check import missing_programs
from dart_train.config.run_config import RunConfig
from dart_train.core.device_peaks import peak_flops
from dart_train.core.train_errors import DartTrainError
from dart_train.placement.gpu_discovery import GPU, QUERY_LIMIT_S
from dart_train.placement.placement import OUR_TRAINER, Placement
from dart_train.plan.plan_machine import model_size, this_machine
from dart_train.plan.run_plan import Machine, certain_disk, refusals
from dart_train.trainer.memory.step_memory import in_units

LEAST_DRIVER = {12: 525, 13: 580}
"""Major version of CUDA -> least major version of the driver (NVIDIA's table of minor version compatibility)."""
BF16_CAPABILITY = 8.0


def machine_problems(config: RunConfig, placement: Placement, gpus: Sequence[GPU], runs_dir: Path) -> list[str]:
    """Everything of this machine that ends a run, or parts of it, later."""
    found = [*_programs(config), *_engine(config, placement)]
    if placement.trainer or any(placement.engines):
        found += _drivers(config, placement)
    found += _room(config, placement, gpus, runs_dir)
    return found


def _programs(config: RunConfig) -> Iterator[str]:
    if config.cluster.url is None and config.cluster.provider == "xvfb":
        missing = missing_programs()
        if missing:
            packages = " ".join(sorted(set(missing.values())))
            yield f"desktops need {', '.join(missing)}, which are not installed: apt-get install {packages}"
    if config.resources.desktop_cores is not None and shutil.which("taskset") is None:
        yield "resources.desktop_cores needs the program taskset: apt-get install util-linux, or leave it out"


def _engine(config: RunConfig, placement: Placement) -> Iterator[str]:
    section = config.rollout.engine
    if section.kind != "vllm" or not placement.demand.replicas:
        return
    given = section.options.get("program") or ()
    program = given[0] if given else vllm_environment.program()
    if shutil.which(str(program)) is None:
        yield (
            f"rollout.engine.kind vllm: no program {program!r} here: {vllm_environment.COMMAND}, or name it in "
            "rollout.engine.options.program"
        )
    elif not given and "/" in program and (wrong := vllm_environment.problem()):
        yield f"rollout.engine.kind vllm: {wrong}: {vllm_environment.COMMAND}"


def _drivers(config: RunConfig, placement: Placement) -> Iterator[str]:
    """Yield what the driver and the GPUs cannot do."""
    rows = driver_rows()
    versions = {row[0] for row in rows}
    cuda = None
    if placement.trainer:
        import torch

        cuda = torch.version.cuda
        if not torch.cuda.is_available():
            built = f"is built for CUDA {cuda}" if cuda else "is built for the CPU"
            yield (
                f"the trainer gets GPUs, and torch {torch.__version__} finds none: it {built}, and the driver is "
                f"{', '.join(sorted(versions)) or 'not known'}. Install a torch that fits, or a newer driver"
            )
    least = LEAST_DRIVER.get(int(cuda.split(".")[0])) if cuda else None
    for version in sorted(versions):
        major = version.split(".")[0]
        if least and major.isdigit() and int(major) < least:
            yield f"the driver is {version}, and torch's CUDA {cuda} needs {least} or newer: install a newer driver"
    weak = sorted({float(row[1]) for row in rows if _number(row[1]) and float(row[1]) < BF16_CAPABILITY})
    if weak and config.trainer.model_dump().get("bf16") and placement.trainer:
        yield (
            f"trainer.bf16 needs GPUs of compute capability {BF16_CAPABILITY:g}, and here is one of {weak[0]:g}: set "
            "trainer.fp16 instead, or hide that GPU by CUDA_VISIBLE_DEVICES"
        )


def driver_rows() -> list[tuple[str, str]]:
    """(version of the driver, compute capability) of each GPU; empty where the program does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _room(config: RunConfig, placement: Placement, gpus: Sequence[GPU], runs_dir: Path) -> Iterator[str]:
    """Memory and disk, by what is certain of a run; the models of the package are small."""
    if not (Path(config.model.path) / "config.json").is_file():
        return
    try:
        size = model_size(config.model.path)
    except (DartTrainError, OSError, ValueError, KeyError, TypeError):  # the model's own check says it
        return
    if config.trainer.kind == OUR_TRAINER:
        yield from refusals(config, size, machine_of(gpus))
    needed = certain_disk(config, size)
    place = runs_dir.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        yield (
            f"{place} has {in_units(free)} free, and the versions and states that are kept take {in_units(needed)}: "
            "choose another --runs-dir, or lower trainer.keep_published"
        )


def machine_of(gpus: Sequence[GPU]) -> Machine:
    """This machine with the GPUs that were found, those free of others' work."""
    free = [gpu for gpu in gpus if not gpu.occupied]
    host = replace(this_machine(), gpus=0, gpu_bytes=0, flops=None)
    if not free:
        return host
    return replace(
        host, gpus=len(free), gpu_bytes=min(gpu.memory_mb for gpu in free) << 20, flops=peak_flops(free[0].name)
    )
