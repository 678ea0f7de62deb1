"""Whether engines and trainer agree on a checkpoint in bfloat16: `dart-train parity` on this device."""

from __future__ import annotations

import torch

from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.parity.check_model import Compared, compare
from dart_train.parity.recorded_conversation import Shape

LARGE, SMALL = Shape(steps=3), Shape(screen=(448, 336), steps=3, tokens=12)
"""Conversations for a named checkpoint and for the tiny one."""


def check_embedded(setting: CheckSetting) -> list[Outcome]:
    """Compare the embedded engine and every layout and kernel of the trainer with the model's own pass."""
    shape = LARGE if setting.own_model else SMALL
    compared = compare(
        setting.model_dir,
        engine="transformers",
        device=setting.device,
        engine_dtype="bfloat16",
        shape=shape,
        dtypes=(torch.float32, torch.bfloat16),
    )
    return [_outcome("parity, embedded engine", compared)]


def check_vllm(setting: CheckSetting) -> list[Outcome]:
    """The same with a vLLM server."""
    shape = LARGE if setting.own_model else SMALL
    compared = compare(setting.model_dir, engine="vllm", device=setting.device, shape=shape, dtypes=(torch.bfloat16,))
    return [_outcome("parity, vLLM", compared)]


def _outcome(name: str, compared: Compared) -> Outcome:
    worst = max(compared.gaps, key=lambda gap: (not gap.agrees, gap.largest))
    found = f"{len(compared.gaps)} pairs, largest gap {worst.largest:.1e} nats ({worst.pair}), mean {worst.mean:.1e}"
    wanted = f"at most {worst.expected:g} nats"
    if all(gap.agrees for gap in compared.gaps):
        return Outcome(name, Status.OK, found, wanted, values=compared.keys)
    bad = ", ".join(gap.pair for gap in compared.gaps if not gap.agrees)
    advice = f"dart-train parity shows the first token that differs; further apart than rounding: {bad}"
    return Outcome(name, Status.FAILED, found, wanted, advice, compared.keys)
