"""The whole comparison for one model and one engine."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from dart_agent.engines.base.engine import Engine
from dart_agent.engines.base.engine_kind import REQUEST_TIMEOUT_S
from dart_agent.engines.engine_kinds import connect_engine
from dart_agent.models.families.family_table import family_in, model_config
from dart_agent.models.model_tokens import ModelTokens
from dart_train.core.train_errors import TrainingError
from dart_train.parity.gap_table import Gap, expected_gap, gap
from dart_train.parity.policy_ways import Way, all_ways
from dart_train.parity.recorded_conversation import Recorded, Shape, record
from dart_train.rollout.fleet.engine_pool import EnginePool, EpisodeEngine
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.settings.rollout_config import EngineConfig
from dart_train.trainer.weights.model_loading import check_model


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome of a comparison: gaps between the model's own pass, the trainer's ways and the engine."""

    family: str
    gaps: list[Gap]
    recorded: Recorded

    @property
    def keys(self) -> dict[str, float]:
        """The largest gap of each pair, by `parity.<family>.<pair>`."""
        return {f"parity.{self.family}.{item.pair}": item.largest for item in self.gaps}


def compare(
    model_dir: str | Path,
    *,
    engine: str = "transformers",
    engine_options: dict[str, Any] | None = None,
    device: str = "cpu",
    engine_dtype: str | None = None,
    shape: Shape = Shape(),
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Compared:
    """Sample a conversation and compute its log-probabilities in every way.

    Args:
        model_dir: of a model of a known family.
        engine: "transformers" for ours in this process, a kind of engine that is started for it such as "vllm", or the
            address of a server.
        engine_options: of a kind that is started.
        device: of the trainer, and of our engine.
        engine_dtype: precision of our engine, float32 if not given; of another, bfloat16 if not given, what it was
            started with, from which follows how large a gap rounding explains.
        shape: of the conversation.
        dtypes: of the trainer's ways.
        timeout_s: most seconds for one response of a server.

    Raises:
        ConfigurationError: the model is of no known family, or cannot be trained.
        TrainingError: the device is not there.
        EngineError: the engine cannot be reached, or its answers cannot be trained on.
    """
    family = family_in(model_dir).model_type
    check_model(model_dir)
    disable_progress_bar()  # of reading weights
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("torch finds no CUDA device: leave --device out, or install a torch built for CUDA")
    computes_in = engine_dtype or ("float32" if engine == "transformers" else "bfloat16")
    recorded = asyncio.run(_record(model_dir, engine, engine_options, device, computes_in, shape, timeout_s))
    half = computes_in != "float32"
    sampled = Way(
        "engine", torch.bfloat16 if half else torch.float32, [list(item.logprobs) for item in recorded.samples]
    )
    ways = list(
        all_ways(model_dir, recorded, device=torch.device(device), temperature=shape.temperature, dtypes=dtypes)
    )
    config = model_config(model_dir)
    layers = (config.get("text_config") or config)["num_hidden_layers"]
    own, *trainers = ways
    pairs = [(own, way) for way in [*trainers, sampled]] + [(sampled, way) for way in trainers if "packed" in way.name]
    gaps = []
    for one, other in pairs:
        expected = expected_gap(layers=layers, half={one.dtype, other.dtype} != {torch.float32})
        gaps.append(gap(one.name, one.logprobs, other.name, other.logprobs, expected))
    return Compared(family, gaps, recorded)


def spelling(compared: Compared, model_dir: str | Path) -> Any:
    """A function of step and place that gives the token's text."""
    tokens = ModelTokens.load(model_dir)
    return lambda step, place: tokens.decode([compared.recorded.samples[step].response_ids[place]], special=True)


async def _record(
    model_dir: str | Path,
    engine: str,
    options: dict[str, Any] | None,
    device: str,
    dtype: str,
    shape: Shape,
    timeout_s: float,
) -> Recorded:
    async with open_engine(str(model_dir), engine, options, device, dtype, shape, timeout_s) as opened:
        return await record(opened, model_dir, shape)


@asynccontextmanager
async def open_engine(
    model_dir: str,
    engine: str,
    options: dict[str, Any] | None,
    device: str,
    dtype: str,
    shape: Shape,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> AsyncIterator[Engine]:
    """Open an engine that serves a model, by kind or address, and close it at the end; see `compare`."""
    if "://" in engine:
        client = connect_engine(engine, model_dir, request_timeout_s=timeout_s)
        try:
            yield client
        finally:
            await client.close()
    elif engine == "transformers":
        from dart_agent.engines.embedded.transformers_engine import TransformersEngine

        own = TransformersEngine(model_dir, device=device, dtype=dtype)
        try:
            yield own
        finally:
            await own.close()
    else:
        config = EngineConfig(
            kind=engine, options=options or {}, images=shape.screenshots, start_timeout_s=900.0, request_timeout_s=300.0
        )
        with tempfile.TemporaryDirectory(prefix="dart-parity-") as place:
            async with EnginePool(config, Weights(model_dir, 0), directory=place) as pool:
                yield EpisodeEngine(pool)
