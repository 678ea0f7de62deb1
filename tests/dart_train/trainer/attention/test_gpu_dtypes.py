"""What a GPU's kernels are given: one number type, whatever weights, adapters and autocast are. Its plan, on the CPU.

Each kernel here is as strict as the GPU's: `CausalBias` and FlexAttention compare types before autocast casts anything,
FlashAttention takes half precision alone.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dart_agent.episodes.screenshots import image_hash
from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_lab.train.made_up_steps import Window, record_steps
from dart_train.parity.check_model import compare
from dart_train.parity.recorded_conversation import Shape
from dart_train.trainer.attention import kernels, model_attention
from dart_train.trainer.attention.kernels import Attention, Layout, of_one_type
from dart_train.trainer.attention.segments import Segment
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.image_features import ImageFeatures
from dart_train.trainer.policy_logprobs import response_logprobs, tower_features
from dart_train.trainer.weights.adapters import LoraSettings, base_model
from dart_train.trainer.weights.model_loading import load_model, trainable
from tests.helpers.parameters import slow_but

pytestmark = pytest.mark.train

KERNELS = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
SETTINGS = {
    "float32 weights, bfloat16 autocast": (torch.float32, torch.bfloat16),
    "float32 weights, float16 autocast": (torch.float32, torch.float16),
    "bfloat16 weights": (torch.bfloat16, None),
    "bfloat16 weights and autocast": (torch.bfloat16, torch.bfloat16),
    "float32": (torch.float32, None),
}


def strict_varlen(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, longest_query: int,
    longest_key: int, softmax_scale: float | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """`flash_attn_varlen_func` in plain PyTorch, with the types that it refuses."""
    assert {part.dtype for part in (query, key, value)} <= {torch.float16} or {query.dtype, key.dtype, value.dtype} == {
        torch.bfloat16
    }, "FlashAttention only supports fp16 and bf16 data type"
    parts = []
    for number in range(len(query_ends) - 1):
        queries = query[query_ends[number] : query_ends[number + 1]].transpose(0, 1)
        keys, values = (x[key_ends[number] : key_ends[number + 1]].transpose(0, 1) for x in (key, value))
        length, count = queries.shape[1], keys.shape[1]
        allowed = torch.ones(length, count, dtype=torch.bool).tril(count - length) if causal else None
        found = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=allowed, scale=softmax_scale, enable_gqa=True
        )
        parts.append(found.transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The plan of a GPU, and kernels that are as strict."""
    monkeypatch.setattr(kernels, "needs_masks", lambda device: False)
    for module in (kernels, model_attention):
        monkeypatch.setattr(module, "flash_varlen", lambda name: strict_varlen)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_takes_what_autocast_leaves_unlike(kernel, as_on_a_gpu):
    """Rotary embeddings make queries and keys float32 again, values stay in half precision."""
    generator = torch.Generator().manual_seed(0)
    own = [torch.randn(1, 2, 48, 16, generator=generator) for _ in range(3)]
    given = [own[0], own[1], own[2].bfloat16()]
    attention = Attention(Layout([Segment(0, 20), Segment(20, 33, 0, 20), Segment(33, 48)], 48), kernel)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = attention(*given, None)
    exact = Attention(attention.layout)(*own, None)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), exact, atol=0.03, rtol=0.03)


def test_what_nothing_casts_keeps_its_type():
    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    assert [part.dtype for part in of_one_type(single, single.bfloat16())] == [torch.float32] * 2
    with torch.autocast("cpu", torch.bfloat16):
        assert of_one_type(double, single)[0].dtype is torch.float64, "autocast leaves it alone"
        assert of_one_type(single)[0].dtype is torch.bfloat16


class Steps:
    """A family's tiny model and steps whose rows have spans and branches."""

    def __init__(self, family: str, directory: Any) -> None:
        config = TinyModelConfig(
            family=family, hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=2,
            vision_intermediate_size=64, temporal_patch_size=2, window=2,
        )  # fmt: skip
        self.dir = build_tiny_model(directory, seed=3, config=config)
        self.tokens, vision = ModelTokens.load(self.dir), VisionSpec.from_dir(self.dir)
        rng = np.random.default_rng(1)
        images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((84, 84), (84, 112), (56, 84))]
        screens = {image_hash(image): image for image in images}
        pads = [vision.num_tokens(image) for image in images]
        samples: list[Sample] = []
        for number in range(2):
            responses = [self.tokens.response(f"Action: click(start_box='({n},{number})')") for n in range(3)]
            steps = record_steps(self.tokens, "Click on the tab", list(screens), pads, responses, Window(2))
            samples += [Sample.from_step(step, trajectory=number) for step in steps]
        collator = Collator(self.tokens, vision, ImageCache(screens.__getitem__))
        self.micro = collator.micro_batches(samples, 1 << 16)

    def logprobs(self, model: Any, kernel: Any = "sdpa") -> Tensor:
        base = base_model(model)
        learns = torch.is_grad_enabled() and any(item.requires_grad for item in base.model.visual.parameters())
        features = ImageFeatures(partial(tower_features, base, kernel=kernel), trainable=learns, budget_bytes=1 << 30)
        found = [response_logprobs(model, one, (), features=features, kernel=kernel)[0] for one in self.micro]
        if torch.is_grad_enabled():
            sum(one.sum() for one in found).backward()
            if learns:
                features.backward()
        return torch.cat([one[batch.mask] for one, batch in zip(found, self.micro, strict=True)]).detach()


@pytest.fixture(scope="module", params=slow_but(["qwen2_5_vl", "qwen3_5"], FAMILIES))
def steps(request, tmp_path_factory) -> Steps:
    return Steps(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kernel", ("sdpa", "flash_attention_2"))
def test_every_family_trains_with_the_plan_of_a_gpu(steps, kernel, setting, as_on_a_gpu):
    weights, mixed = SETTINGS[setting]
    if kernel != "sdpa" and mixed is None and weights is torch.float32:
        return  # refused before: `check_kernel`
    with torch.no_grad():
        exact = steps.logprobs(load_model(steps.dir))
    model = load_model(steps.dir, dtype=weights)
    with torch.autocast("cpu", mixed) if mixed else nullcontext():
        found = steps.logprobs(model, kernel)
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0)
    missing = [name for name, item in model.named_parameters() if item.requires_grad and item.grad is None]
    assert not [name for name in missing if "lm_head" not in name], "every weight has its gradient"


@pytest.mark.parametrize("frozen", ("float32", "bfloat16"))
@pytest.mark.parametrize("autocast", (True, False))
def test_an_adapter_trains_with_the_plan_of_a_gpu(steps, frozen, autocast, as_on_a_gpu):
    """`frozen_dtype` is float32 by default; and adapters of a few layers leave the others in their own type."""
    for targets in (None, [r".*language_model.*\.q_proj"], [r".*language_model.*\.v_proj"]):
        model = load_model(steps.dir, dtype=getattr(torch, frozen))
        model = trainable(model, freeze_vision=True, lora=LoraSettings(r=4, target_modules=targets))
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            assert steps.logprobs(model).isfinite().all()
        assert all(item.grad is not None for name, item in model.named_parameters() if "lora_B" in name)


@pytest.mark.thorough
@pytest.mark.parametrize("family", slow_but(["qwen3_5"], FAMILIES))
def test_parity_compares_every_way_with_the_plan_of_a_gpu(family, tmp_path, as_on_a_gpu):
    config = TinyModelConfig(family=family, hidden_size=32, layers=2, vision_hidden_size=32, vision_layers=2,
                             temporal_patch_size=2)  # fmt: skip
    found = compare(build_tiny_model(tmp_path, config=config), shape=Shape(screen=(112, 84), steps=2, tokens=4))
    assert all(item.agrees for item in found.gaps), [item.pair for item in found.gaps if not item.agrees]


def test_cudnns_attention_is_left_out_on_a_gpu_alone(monkeypatch):
    told: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", told.append)
    kernels.choose_backends(torch.device("cpu"))
    kernels.choose_backends(torch.device("cuda"))
    assert told == [False]
