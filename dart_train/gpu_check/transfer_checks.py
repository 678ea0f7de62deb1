"""Weights through files: how fast a version is written to the disk, and read to the device again."""

from __future__ import annotations

import os
import time

import torch
from safetensors.torch import load_file, save_file

from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.device_checks import GIB
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.trainer.step_cost import synchronize

TENSORS = 16
TENSOR_BYTES = {"cuda": 128 << 20, "cpu": 8 << 20}


def check_files(setting: CheckSetting) -> list[Outcome]:
    """Write tensors as safetensors, flush them to the disk, read them to the device, and compare."""
    device = torch.device(setting.device)
    count = TENSOR_BYTES[setting.device] // 2
    tensors = {
        f"weights.{number}": torch.arange(count, device=device).remainder(250 + number).to(torch.bfloat16)
        for number in range(TENSORS)
    }
    size = TENSORS * TENSOR_BYTES[setting.device]
    path = setting.scratch / "version.safetensors"
    started = time.perf_counter()
    save_file({name: tensor.cpu() for name, tensor in tensors.items()}, path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        written = time.perf_counter() - started
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # or the file would be read from memory
    finally:
        os.close(descriptor)
    started = time.perf_counter()
    loaded = {name: tensor.clone() for name, tensor in load_file(path, device=str(device)).items()}
    synchronize(device)
    read = time.perf_counter() - started
    same = all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    path.unlink()
    found = f"{size / GIB:.2f} GiB: written at {size / GIB / written:.2f} GiB/s, read at {size / GIB / read:.2f} GiB/s"
    values = {"bytes": size, "write_seconds": written, "read_seconds": read}
    if not same:
        return [Outcome("weights by file", Status.FAILED, f"{found}; other numbers came back", values=values)]
    return [Outcome("weights by file", Status.OK, found, values=values)]
