"""Checks of several ranks: a model that is sharded over all devices, and weights that are broadcast between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from dart_agent.models.families.family_table import model_config
from dart_gym.utils.processes import die_with_parent
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.device_checks import GIB
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.trainer.attention.shared_heads import unshared_heads

LOSS_GAP = {"cuda": 2e-2, "cpu": 1e-4}
"""Largest relative difference of the loss between ranks that share a model and one that holds it whole; bfloat16 on
GPUs, float32 on a CPU."""
NORM_GAP = {"cuda": 5e-2, "cpu": 1e-3}
"""The same of the gradient's norm."""


def check_fsdp(setting: CheckSetting) -> list[Outcome]:
    """Compare loss and gradient norm of a sharded model with those of a whole one."""
    return _beside_whole(f"FSDP2 over {setting.devices} ranks", _run_ranks("fsdp", setting), setting)


def check_context(setting: CheckSetting) -> list[Outcome]:
    """Compare the same of ranks that hold slices of a row (`trainer.context_parallel`) with those of a whole one."""
    size = largest_group(model_config(setting.model_dir), setting.devices)
    if size == 1:
        found = f"the model's heads cannot be shared by {setting.devices} ranks, or by a divisor of them"
        return [Outcome("rows shared by ranks", Status.SKIPPED, found)]
    return _beside_whole(f"rows shared by {size} of {setting.devices} ranks", _run_ranks("context", setting), setting)


def largest_group(config: Mapping[str, Any], devices: int) -> int:
    """Return how many ranks may share a model's rows, all devices or a divisor of their number; 1 if none may. Pure."""
    sizes = (size for size in range(devices, 1, -1) if devices % size == 0 and not unshared_heads(config, size))
    return next(sizes, 1)


def _beside_whole(name: str, values: dict[str, Any], setting: CheckSetting) -> list[Outcome]:
    loss_gap = abs(values["loss"] - values["whole_loss"]) / abs(values["whole_loss"])
    norm_gap = abs(values["norm"] - values["whole_norm"]) / abs(values["whole_norm"])
    found = f"loss {loss_gap:.1e} and gradient norm {norm_gap:.1e} from one rank's, {values['seconds']:.2f} s a pass"
    wanted = f"at most {LOSS_GAP[setting.device]:g} and {NORM_GAP[setting.device]:g}"
    values |= {"loss_gap": loss_gap, "norm_gap": norm_gap}
    if not (loss_gap <= LOSS_GAP[setting.device] and norm_gap <= NORM_GAP[setting.device]):
        advice = "ranks do not compute what one device computes: check NCCL (NCCL_DEBUG=INFO) and the devices' links"
        return [Outcome(name, Status.FAILED, found, wanted, advice, values)]
    return [Outcome(name, Status.OK, found, wanted, values=values)]


def check_broadcast(setting: CheckSetting) -> list[Outcome]:
    """Broadcast tensors from the first rank to all others, as weights travel, and compare what arrives."""
    values = _run_ranks("broadcast", setting)
    backend = "NCCL" if setting.on_gpu else "gloo"
    speed = values["bytes"] / GIB / values["seconds"]
    found = f"{values['bytes'] / GIB:.2f} GiB to {setting.devices - 1} other rank(s) in {values['seconds']:.2f} s, "
    found += f"{speed:.2f} GiB/s"
    name = f"weights by {backend}"
    if not values["same"]:
        advice = "other numbers arrived: check the devices' links (nvidia-smi topo -m), NCCL_P2P_DISABLE=1 as a test"
        return [Outcome(name, Status.FAILED, found, advice=advice, values=values)]
    return [Outcome(name, Status.OK, found, values=values)]


def _run_ranks(work: str, setting: CheckSetting) -> dict[str, Any]:
    """Run `rank_work` as one process for each device and return what the first rank reports.

    Raises:
        RuntimeError: a rank failed; with its last line of errors.
    """
    output = setting.scratch / f"{work}.json"
    command = [
        sys.executable,
        "-m",
        "dart_train.launch.rank_launcher",
        "--standalone",
        f"--nproc-per-node={setting.devices}",
        "--module",
        "dart_train.gpu_check.rank_work",
        work,
        json.dumps(setting.as_values()),
        str(output),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=die_with_parent())
    if done.returncode or not output.is_file():
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise RuntimeError(f"a rank ended with {done.returncode}: {lines[-1] if lines else 'it said nothing'}")
    found: dict[str, Any] = json.loads(output.read_text())
    return found
