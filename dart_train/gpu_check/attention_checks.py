"""Each attention kernel that can run here, forward and backward, against plain attention in float64."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from dart_train.core.train_errors import TrainingError
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.outcome import Outcome, Status
from dart_train.trainer.attention.kernels import Attention, Layout, check_kernel
from dart_train.trainer.attention.segments import KERNELS, KernelName, Segment
from dart_train.trainer.step_cost import synchronize

HEADS = 8
KEY_HEADS = 2
HEAD_SIZE = 64
PROMPT, BRANCH = 384, 96
"""Places of a prompt that two branches see; a third, packed segment sees neither. None is a multiple of 128."""
RIGHT = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Largest relative error of outputs and gradients."""


def check_attention(setting: CheckSetting) -> list[Outcome]:
    """Return outcomes for each kernel that can train here in float32 and bfloat16, and one for each that cannot."""
    device = torch.device(setting.device)
    outcomes = []
    for kernel in KERNELS:
        try:
            check_kernel(kernel, device, half=True)
        except TrainingError as error:
            outcomes.append(Outcome(f"attention {kernel}", Status.SKIPPED, str(error)))
            continue
        dtypes = [torch.bfloat16] if kernel.startswith("flash") else list(RIGHT)
        outcomes += [_outcome(kernel, device, dtype) for dtype in dtypes]
    return outcomes


def _outcome(kernel: KernelName, device: torch.device, dtype: torch.dtype) -> Outcome:
    name = f"attention {kernel} {str(dtype).removeprefix('torch.')}"
    try:
        errors, seconds = _compare(kernel, device, dtype)
    except RuntimeError as error:  # what torch raises for a kernel that is not compiled for this device
        lines = str(error).strip().splitlines()
        return Outcome(name, Status.FAILED, lines[0] if lines else repr(error), advice=_ADVICE)
    worst = max(errors.values())
    found = f"relative error {worst:.1e}, {1e3 * seconds:.1f} ms forward and backward"
    values = {"seconds": seconds, **{f"error_{part}": error for part, error in errors.items()}}
    if not worst <= RIGHT[dtype]:
        return Outcome(name, Status.FAILED, found, f"at most {RIGHT[dtype]:g}", _ADVICE, values)
    return Outcome(name, Status.OK, found, f"at most {RIGHT[dtype]:g}", values=values)


_ADVICE = "choose another kernel with trainer.attention; sdpa needs PyTorch only"


def _compare(kernel: KernelName, device: torch.device, dtype: torch.dtype) -> tuple[dict[str, float], float]:
    """Return relative errors of output and gradients, and the seconds of a warm pass."""
    layout = _layout()
    given = _inputs(layout.places)
    expected = _pass([item.double() for item in given], lambda q, k, v: _plain(layout, q, k, v))
    ready = [item.to(device, dtype) for item in given]

    def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return Attention(layout, kernel)(query, key, value, None)

    _pass(ready, compute)  # compiles and plans
    synchronize(device)
    started = time.perf_counter()
    found = _pass(ready, compute)
    synchronize(device)
    seconds = time.perf_counter() - started
    parts = ("output", "query", "key", "value")
    return {
        part: float((one.double().cpu() - other).norm() / other.norm())
        for part, one, other in zip(parts, found, expected, strict=True)
    }, seconds


def _layout() -> Layout:
    """A prompt with two branches, and a packed row beside them."""
    segments = [Segment(0, PROMPT)]
    for start in (PROMPT, PROMPT + BRANCH):
        segments.append(Segment(start, start + BRANCH, 0, PROMPT))
    begin = PROMPT + 2 * BRANCH
    segments.append(Segment(begin, begin + BRANCH + 1))
    return Layout(segments, begin + BRANCH + 1)


def _inputs(places: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, places, HEAD_SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _pass(given: list[Tensor], compute: object) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values, for one fixed gradient of the output."""
    leaves = [item.detach().clone().requires_grad_() for item in given]
    output = compute(*leaves)  # type: ignore[operator]
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    (output * weights).sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _plain(layout: Layout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, L, heads, head size) by the definition: a mask of all places by all places."""
    sees = torch.zeros(layout.places, layout.places, dtype=torch.bool)
    for segment in layout.segments:
        own = slice(segment.start, segment.stop)
        sees[own, own] = torch.ones(segment.length, segment.length, dtype=torch.bool).tril()
        sees[own, segment.seen_start : segment.seen_stop] = True
    repeated = [part.repeat_interleave(HEADS // KEY_HEADS, dim=1) for part in (key, value)]
    products = query @ repeated[0].transpose(-1, -2) / HEAD_SIZE**0.5
    weights = products.masked_fill(~sees, -torch.inf).softmax(-1)
    return (weights @ repeated[1]).transpose(1, 2)
