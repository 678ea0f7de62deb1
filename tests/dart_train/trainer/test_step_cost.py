"""Operations of a step as they are reported, against PyTorch's own count, and the metrics made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dart_agent.episodes.screenshots import image_hash
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.trainer.attention.segments import Segment
from dart_train.trainer.batches.collator import Collator, ImageCache
from dart_train.trainer.batches.samples import Sample
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.policy_logprobs import Policy
from dart_train.trainer.step_cost import StepCost, StepSpeed, attended
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter
from dart_train.trainer.weights.model_loading import load_model
from tests.helpers.counted_operations import counting

SHAPE = TinyModelConfig(hidden_size=256, layers=3, intermediate_size=768, vision_hidden_size=128, vision_layers=3)


def test_a_token_sees_itself_and_those_before_it():
    assert attended([Segment(0, 3)]) == (3, 2.0)
    assert attended([Segment(0, 2), Segment(2, 4, 0, 2)]) == (4, (1 + 2 + 3 + 4) / 4)
    assert attended([]) == (0, 0.0)


def test_metrics_of_a_step():
    speed = StepSpeed.of([(1e12, 100), (3e12, 300)], {"train": 1.5})
    found = speed.report(2.0, "NVIDIA H100 80GB HBM3", 2)
    assert found["perf/tokens_per_s"] == 200 and found["perf/tflops_per_s"] == 2.0 and found["perf/train_s"] == 1.5
    assert found["perf/mfu"] == pytest.approx(4e12 / (2.0 * 2 * 989e12))
    assert "perf/mfu" not in speed.report(2.0, "cpu", 2)
    assert speed.report(0.0, "cpu", 2) == {"perf/train_s": 1.5}


@pytest.mark.train
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl_moe"])
@pytest.mark.parametrize("adapter", [False, True])
def test_reported_operations_are_those_that_pytorch_counts(adapter, family, tmp_path):
    torch.manual_seed(0)
    build_tiny_model(tmp_path, config=replace(SHAPE, family=family))
    model = load_model(tmp_path).train()
    if adapter:
        model.model.visual.requires_grad_(False)
        model = add_adapter(model, LoraSettings(r=4))
    tokens, vision = ModelTokens.load(tmp_path), VisionSpec.from_dir(tmp_path)
    screen = np.random.default_rng(0).integers(0, 256, (336, 448, 3), np.uint8)
    pads = [tokens.vision_start_id, *[tokens.image_pad_id] * vision.num_tokens(screen), tokens.vision_end_id]
    name = image_hash(screen)
    sample = Sample(tuple(pads + tokens.encode("a" * 300)), (name,), tuple(tokens.encode("b" * 40)), (-1.0,) * 40)
    (micro,) = Collator(tokens, vision, ImageCache({name: screen}.__getitem__)).micro_batches([sample], 4096)
    cost = StepCost(ModelSize.of_directory(tmp_path), adapter=adapter, trains_tower=not adapter)
    policy = Policy(model, tokens.suppressed_ids, features_mb=0)
    with counting() as counter:
        logprobs, _ = policy(micro, None)
        logprobs[micro.mask].sum().backward()
    cost.add_pass(micro, "policy", trained=True, keeps_features=False)
    assert cost.flops == pytest.approx(counter.get_total_flops(), rel=0.1)
    assert cost.tokens == len(sample.prompt_ids) + len(sample.response_ids) - 1  # nothing follows the last one


@pytest.mark.train
def test_an_image_counts_once_where_its_features_are_kept(tmp_path):
    build_tiny_model(tmp_path)
    tokens, vision = ModelTokens.load(tmp_path), VisionSpec.from_dir(tmp_path)
    screen = np.zeros((112, 112, 3), np.uint8)
    name = image_hash(screen)
    prompt = (tokens.vision_start_id, *[tokens.image_pad_id] * vision.num_tokens(screen), tokens.vision_end_id)
    sample = Sample(prompt, (name,), tuple(tokens.encode("ab")), (-1.0, -1.0))
    (micro,) = Collator(tokens, vision, ImageCache({name: screen}.__getitem__)).micro_batches([sample], 4096)
    size = ModelSize.of_directory(tmp_path)

    def total(keeps: bool) -> float:
        cost = StepCost(size, adapter=False, trains_tower=True)
        for _ in range(2):
            cost.add_pass(micro, "policy", trained=True, keeps_features=keeps)
        return cost.flops

    assert total(True) < total(False)
