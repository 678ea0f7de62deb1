"""Each device: what it is, how much memory is free, and whether its matrix products are right and fast."""

from __future__ import annotations

import time

import torch

from dart_train.core.device_peaks import peak_flops
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.placement.gpu_discovery import OCCUPIED_MB
from dart_train.trainer.step_cost import synchronize

GIB = 1 << 30
SIDE = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the timed matrices."""
RIGHT = 2e-2
"""Largest relative error of a product in bfloat16, whose numbers have eight bits."""
SLOW = 0.5
"""A device below this share of its peak in one large product is slow."""


def check_devices(setting: CheckSetting) -> list[Outcome]:
    """Return two outcomes for each device: its properties, and a matrix product."""
    if not setting.on_gpu:
        return [
            _versions("cpu", "CPU", f"{torch.get_num_threads()} threads"),
            matrix_product(torch.device("cpu"), "CPU"),
        ]
    outcomes = []
    for index in range(setting.devices):
        device = torch.device("cuda", index)
        outcomes += [_properties(index), matrix_product(device, torch.cuda.get_device_name(index))]
    return outcomes


def _versions(name: str, title: str, more: str) -> Outcome:
    return Outcome(name, Status.OK, f"{title}, {more}, torch {torch.__version__}", values={"device": title})


def _properties(index: int) -> Outcome:
    """Name, memory and versions; a warning where somebody else uses the device."""
    title = torch.cuda.get_device_name(index)
    free, total = torch.cuda.mem_get_info(index)
    major, minor = torch.cuda.get_device_capability(index)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"
    found = f"{title}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, compute capability {major}.{minor}"
    found += f", torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}"
    values: dict[str, float | str] = {"device": title, "free_bytes": free, "total_bytes": total}
    name = f"cuda:{index}"
    if (total - free) >> 20 >= OCCUPIED_MB:
        return Outcome(
            name, Status.WARNING, found, "an idle device", "another process uses it: nvidia-smi names it", values
        )
    if major < 8:
        return Outcome(
            name,
            Status.FAILED,
            found,
            "compute capability 8.0 (bfloat16)",
            "train with fp16, or on a newer device",
            values,
        )
    return Outcome(name, Status.OK, found, values=values)


def matrix_product(device: torch.device, title: str) -> Outcome:
    """A product of two matrices in bfloat16: compared with float64 where it is small, timed where it is large."""
    name = f"matrix product {device}"
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator, dtype=torch.float64) for _ in range(2))
    exact = left @ right
    product = (left.to(device, torch.bfloat16) @ right.to(device, torch.bfloat16)).double().cpu()
    error = float((product - exact).norm() / exact.norm())
    speed = _speed(device)
    peak = peak_flops(title)
    share = "" if peak is None else f", {speed / peak:.0%} of the peak"
    found = f"{speed / 1e12:.2f} TFLOP/s{share}, relative error {error:.1e}"
    values = {"flops": speed, "error": error}
    if not error <= RIGHT:
        advice = "the device computes wrong numbers: check its memory (nvidia-smi -q -d ECC), driver and torch build"
        return Outcome(name, Status.FAILED, found, f"an error below {RIGHT:g}", advice, values)
    if peak is not None and speed < SLOW * peak:
        advice = "look for other processes, a power limit or a hot device: nvidia-smi -q -d CLOCK,POWER,TEMPERATURE"
        return Outcome(name, Status.WARNING, found, f"at least {SLOW:.0%} of the peak", advice, values)
    return Outcome(name, Status.OK, found, values=values)


def _speed(device: torch.device) -> float:
    """Operations per second of large products in bfloat16: the best of five."""
    side = SIDE[device.type]
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        started = time.perf_counter()
        left @ right
        synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * side**3 / best
