"""One training step of a 7B-shaped model: model FLOP/s utilisation, tokens per second, planned and measured memory.

The model has the published widths of UI-TARS-1.5-7B (Qwen2.5-VL-7B) and as many layers as fit; the time of a matrix
product does not depend on its numbers, so the weights are random. The row is text only: the vision tower is about an
eighth of a step's operations and is left out of both sides of the comparison. A device that cannot hold at least four
full layers with their gradients and moments trains an adapter on a frozen model in bfloat16 instead, as the
configurations for such a device do.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_train.core.device_peaks import utilisation
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.device_checks import GIB
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.gpu_check.text_batch import RESPONSE_SHARE, text_batch
from dart_train.trainer.attention.model_attention import take_over
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.published_models import PUBLISHED, published_shapes
from dart_train.trainer.memory.rank_memory import RankMemory, Setting, Work, rank_memory
from dart_train.trainer.memory.resident_memory import PeakMemory
from dart_train.trainer.policy_logprobs import Policy
from dart_train.trainer.step_cost import synchronize
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter

ROW_TOKENS = {"cuda": 8192, "cpu": 256}
WARM, TIMED = 2, 5
USABLE = 0.85
"""Share of a device's free memory that the shape may plan for."""
WITHIN = {"cuda": 0.15, "cpu": 0.3}
"""Largest difference between planned and measured memory, relative to the measured; on a CPU libraries count too."""
LOW_MFU = 0.2
"""A full-width step below this share of the peak is slow."""
LORA_RANK = 16
_CPU_TEXT = {
    "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 2048,
    "vocab_size": 8192,
}  # fmt: skip
_NO_TOWER = {
    "hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 32, "patch_size": 14, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [0],
}  # fmt: skip
"""A vision tower too small to count: the row has no screenshots."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What is trained: `layers` of the published ones, whole or with an adapter."""

    layers: int
    lora: bool
    text: dict[str, Any]

    @property
    def title(self) -> str:
        """Return what the table calls it."""
        kind = f"LoRA r={LORA_RANK}" if self.lora else "all weights"
        return f"width {self.text['hidden_size']}, {self.layers} layers, {kind}"


def step_shape(device: str, free_bytes: int) -> StepShape:
    """Return the shape that fits into a device's free memory. Pure.

    Whole weights where at least four full layers fit; otherwise an adapter on as many layers as fit in bfloat16.
    """
    if device == "cpu":
        return StepShape(2, False, _CPU_TEXT)
    published = PUBLISHED["7b"]["text_config"]
    room = USABLE * free_bytes
    for lora, least in ((False, 4), (True, 1)):
        for layers in range(published["num_hidden_layers"], least - 1, -1):
            shape = StepShape(layers, lora, published)
            if planned_memory(shape, ROW_TOKENS[device], half=True).peak <= room:
                return shape
    return StepShape(1, True, published)


def model_size(shape: StepShape) -> ModelSize:
    """Return the sizes of a shape, without its vision tower's blocks."""
    text = shape.text | {"num_hidden_layers": shape.layers}
    config = PUBLISHED["7b"] | {"text_config": text}
    shapes = {name: shape for name, shape in published_shapes(config).items() if "visual." not in name}
    return ModelSize.of(config, shapes)


def planned_memory(shape: StepShape, tokens: int, *, half: bool) -> RankMemory:
    """Return the plan of one rank that trains the shape with checkpointing and AdamW."""
    setting = Setting(
        half=half,
        checkpointing=True,
        trains_tower=False,
        lora_rank=LORA_RANK if shape.lora else 0,
        half_base=shape.lora and half,
    )
    return rank_memory(model_size(shape), setting, Work(tokens, tokens // RESPONSE_SHARE))


def check_training(setting: CheckSetting) -> list[Outcome]:
    """Train a few steps and return the outcomes of speed and of memory."""
    device = torch.device(setting.device)
    free = torch.cuda.mem_get_info(device)[0] if setting.on_gpu else 0
    shape, tokens = step_shape(setting.device, free), ROW_TOKENS[setting.device]
    title = torch.cuda.get_device_name(device) if setting.on_gpu else "CPU"
    with tempfile.TemporaryDirectory(prefix="dart-check-") as place:
        if not setting.on_gpu:  # libraries take their memory once, which is not the measured step's
            _train(Path(place), StepShape(1, False, _CPU_TEXT), 32, device)
        with PeakMemory(device) as memory:
            seconds, optimizer_seconds = _train(Path(place), shape, tokens, device)
    size = model_size(shape)
    forward = size.forward_flops(tokens, tokens / 2, tokens // RESPONSE_SHARE, 0, 0)
    flops = forward * (2 if shape.lora else 3)
    planned = planned_memory(shape, tokens, half=setting.on_gpu).peak
    return [
        _speed_outcome(shape, tokens, seconds, optimizer_seconds, flops, title),
        _memory_outcome(planned, memory.peak, WITHIN[setting.device]),
    ]


def _speed_outcome(
    shape: StepShape, tokens: int, seconds: float, optimizer_seconds: float, flops: float, title: str
) -> Outcome:
    used = utilisation(flops, seconds, title)
    share = "" if used is None else f", MFU {used:.1%}"
    found = f"{tokens / seconds:,.0f} tokens/s, {flops / seconds / 1e12:.2f} TFLOP/s{share}, "
    found += f"{seconds:.2f} s a pass, {optimizer_seconds:.3f} s the optimizer ({shape.title})"
    values: dict[str, float | str] = {
        "tokens_per_second": tokens / seconds,
        "flops": flops / seconds,
        "seconds": seconds,
        "layers": shape.layers,
        "optimizer_seconds": optimizer_seconds,
        "shape": shape.title,
    }
    if used is not None:
        values["mfu"] = used
        if used < LOW_MFU:
            advice = "look at the rows of matrix product and attention: the slowest part is there"
            return Outcome("training step", Status.WARNING, found, f"MFU of {LOW_MFU:.0%}", advice, values)
    return Outcome("training step", Status.OK, found, values=values)


def _memory_outcome(planned: int, measured: int, within: float) -> Outcome:
    ratio = planned / measured
    found = f"planned {planned / GIB:.2f} GiB, measured {measured / GIB:.2f} GiB, ratio {ratio:.2f}"
    values = {"planned_bytes": planned, "measured_bytes": measured, "ratio": ratio}
    wanted = f"within {within:.0%}"
    if abs(ratio - 1) <= within:
        return Outcome("memory of the step", Status.OK, found, wanted, values=values)
    advice = "dart-train plan is off by as much on this machine: leave that much room"
    return Outcome("memory of the step", Status.WARNING, found, wanted, advice, values)


def _train(place: Path, shape: StepShape, tokens: int, device: torch.device) -> tuple[float, float]:
    """Return the median seconds of forward and backward pass, and of the optimizer."""
    half = device.type == "cuda"
    write_processing(place, TinyModelConfig(temporal_patch_size=2))
    known = ModelTokens.load(place)
    model = _model(shape, known, device)
    micro = text_batch(place, known, length=tokens).to(device)

    def autocast() -> Any:
        return torch.autocast("cuda", dtype=torch.bfloat16) if half else nullcontext()

    policy = Policy(model, known.suppressed_ids, autocast=autocast, features_mb=0)
    trained = [item for item in model.parameters() if item.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
    passes: list[float] = []
    updates: list[float] = []
    for _ in range(WARM + TIMED):
        with _timed(passes, device):
            logprobs, _ = policy(micro, None)
            (-logprobs[micro.mask].mean()).backward()
        with _timed(updates, device):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return statistics.median(passes[WARM:]), statistics.median(updates[WARM:])


@contextmanager
def _timed(found: list[float], device: torch.device) -> Iterator[None]:
    synchronize(device)
    started = time.perf_counter()
    yield
    synchronize(device)
    found.append(time.perf_counter() - started)


def _model(shape: StepShape, tokens: ModelTokens, device: torch.device) -> Any:
    """The model with random weights on its device, in training mode, with activation checkpointing."""
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

    half_head = shape.text["hidden_size"] // shape.text["num_attention_heads"] // 2
    first = half_head // 4
    second = (half_head - first) // 2
    config = Qwen2_5_VLConfig(
        text_config={
            **shape.text,
            "num_hidden_layers": shape.layers,
            "max_position_embeddings": 128000,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [first, second, half_head - first - second],
            },
            "tie_word_embeddings": False,
            "use_sliding_window": False,
        },
        vision_config={**_NO_TOWER, "out_hidden_size": shape.text["hidden_size"]},
        image_token_id=tokens.image_pad_id,
        vision_start_token_id=tokens.vision_start_id,
        tie_word_embeddings=False,
    )
    dtype = torch.bfloat16 if shape.lora else torch.float32
    with device:
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.model.visual.requires_grad_(False)
    take_over(model)
    if shape.lora:
        model = add_adapter(model, LoraSettings(r=LORA_RANK, alpha=2 * LORA_RANK))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()
