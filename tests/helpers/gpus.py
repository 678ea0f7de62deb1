"""A machine with GPUs that it does not have: a program `nvidia-smi` that prints them, first on the PATH.

That is the lowest level at which this package asks: whatever it starts sees the same GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

H100 = ("NVIDIA H100 80GB HBM3", 81559)
RTX_4090 = ("NVIDIA GeForce RTX 4090", 24564)


def gpu_rows(*kinds: tuple[str, int], used: Sequence[int] = ()) -> str:
    """What `nvidia-smi` prints of GPUs of these kinds, of which so many MiB are in use."""
    used = [*used, *[4] * (len(kinds) - len(used))]
    rows = (
        f"{i}, GPU-{i:08x}-aaaa-bbbb, {name}, {size}, {mb}"
        for i, ((name, size), mb) in enumerate(zip(kinds, used, strict=True))
    )
    return "\n".join(rows)


def fake_gpus(monkeypatch: pytest.MonkeyPatch, directory: Path, printed: str, status: int = 0) -> None:
    """Have `nvidia-smi` print this, here and in every process that is started."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'ROWS'\n{printed}\nROWS\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def fake_cuda(monkeypatch: pytest.MonkeyPatch, count: int, memory_mb: int = H100[1]) -> None:
    """Have torch see devices, as it does where `nvidia-smi` lists them; what would initialize one fails the test."""
    import torch

    def initializes(*arguments: object, **options: object) -> None:
        raise AssertionError("the launcher must not initialize a device: it would take memory of it")

    properties = SimpleNamespace(name=H100[0], total_memory=memory_mb << 20, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=0: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=0: (memory_mb << 20, memory_mb << 20))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *given, **options: True)
    for name in ("set_device", "init", "_lazy_init", "current_device"):
        monkeypatch.setattr(torch.cuda, name, initializes)
