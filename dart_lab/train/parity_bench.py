"""Engine, trainer and model agree: the gaps of `dart-train parity` on tiny models of every family, in float32.

Also what it costs: calls of attention in the published tower for one screenshot, and how masks grow with a row.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dart_agent.engines.base.engine import Generation
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.models.families.family_table import FAMILIES, family_in
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_lab.reporting.report import Aim, Report
from dart_lab.train.bench_models import tower_of_7b
from dart_train.parity.check_model import compare
from dart_train.parity.gap_table import EXACT, gap
from dart_train.parity.policy_ways import Way, all_ways
from dart_train.parity.recorded_conversation import Recorded, Shape, record
from dart_train.trainer.attention.kernels import Attention, Layout
from dart_train.trainer.attention.model_attention import TOWER
from dart_train.trainer.attention.segments import Segment

SHAPE = Shape(screen=(280, 196))
UPDATE_AFTER = 3
"""Answers of the first rollout, of five."""
GRID = (1, 78, 138)
"""Patches of a screenshot of 1932x1092."""


def measure(progress: Callable[[str], None]) -> Report:
    """Compare every family; what is not exact shows in red."""
    keys: dict[str, float] = {}
    for name in FAMILIES:
        progress(f"{name}: own forward pass, trainer, engine")
        with tempfile.TemporaryDirectory() as place:
            config = TinyModelConfig(
                family=name, window=2, vision_layers=2, temporal_patch_size=2, matrix_std=0.1, edge_std=0.1
            )
            model = build_tiny_model(Path(place) / name, config=config)
            keys |= compare(model, shape=SHAPE, dtypes=(torch.float32,)).keys
            progress(f"{name}: the same with new weights after the third answer")
            keys |= updated(model, build_tiny_model(Path(place) / "next", seed=1, config=config))
    aims = {key: Aim(EXACT, at_most=True) for key in keys}
    progress("the tower of the 7B model on one screenshot")
    keys["tower_calls_per_screenshot"] = float(tower_calls(TOWER))
    keys["tower_calls_per_screenshot_published"] = float(tower_calls("sdpa"))
    keys["mask_bytes_growth"] = mask_bytes(8192) / mask_bytes(4096)
    aims |= {"tower_calls_per_screenshot": Aim(64, at_most=True), "mask_bytes_growth": Aim(2.0, at_most=True)}
    notes = [
        "parity.<family>.<pair> is the largest difference of log-probabilities in nats over two rollouts of five steps "
        "with up to three screenshots of unlike sizes, tiny models with random weights, float32 on the CPU; merged and "
        "branched are the two layouts of merged rows, left is branched with its padding on the left. "
        "parity.<family>.updated.<pair> is of what was sampled after the engine loaded other weights in the middle of "
        "the first rollout.",
        "tower_calls_per_screenshot counts calls of scaled_dot_product_attention in the 32 blocks of the 7B model's "
        "tower for 1932x1092; mask_bytes_growth is the memory of masks of a row of 8192 tokens, half of them in a "
        "branch, over that of one of 4096.",
    ]
    return Report("parity", keys, aims, notes)


def updated(model: Path, following: Path) -> dict[str, float]:
    """Gaps of the answers that an engine gives in a conversation that other weights began.

    Args:
        model: directory of the weights that give the first answers.
        following: of those that give the others.
    """
    recorded = asyncio.run(_update_while_sampling(model, following))
    after = Recorded(recorded.samples[UPDATE_AFTER:], recorded.screens)
    own, *others = all_ways(
        following, after, device=torch.device("cpu"), temperature=SHAPE.temperature, dtypes=(torch.float32,)
    )
    others.append(Way("engine", torch.float32, [list(sample.logprobs) for sample in after.samples]))
    gaps = [gap("own", own.logprobs, way.name, way.logprobs, EXACT) for way in others]
    return {f"parity.{family_in(model).model_type}.updated.{item.pair}": item.largest for item in gaps}


async def _update_while_sampling(model: Path, following: Path) -> Recorded:
    engine = TransformersEngine(model)
    generate, answers = engine.generate, itertools.count()

    async def generate_or_update(*request: Any) -> Generation:
        if next(answers) == UPDATE_AFTER:
            await engine.update_weights(str(following), 1)
        return await generate(*request)

    engine.generate = generate_or_update  # type: ignore[method-assign, assignment]
    try:
        return await record(engine, model, SHAPE)
    finally:
        await engine.close()


class Calls(TorchDispatchMode):
    """Counts forward calls of PyTorch's attention.

    Attributes:
        count: so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Count a call, and make it."""
        self.count += "scaled_dot_product" in func.__name__ and "backward" not in func.__name__
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def tower_calls(attention: str) -> int:
    """Calls of attention in the tower of the 7B model for one screenshot of 1932x1092.

    Args:
        attention: name of the implementation: ours, or transformers' own.
    """
    tower = tower_of_7b(width=32)
    tower.config._attn_implementation = attention
    pixels = torch.zeros(GRID[1] * GRID[2], 3 * 2 * 14 * 14)
    with Calls() as calls:
        tower(pixels, grid_thw=torch.tensor([GRID]))
    return calls.count


@torch.no_grad()
def mask_bytes(length: int) -> int:
    """Return the bytes of the masks of a row that is half a prompt and half a branch."""
    half = length // 2
    layout = Layout([Segment(0, half), Segment(half, length, 0, half)], length)
    states = torch.zeros(1, 1, length, 4)
    Attention(layout)(states, states, states, None)
    return layout.mask_bytes
