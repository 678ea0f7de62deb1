"""A Qwen2.5-VL of half a billion random weights on two ranks (FSDP2) against one process: widths that users train."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from training_lives import copy_run, live

from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_train.core.metrics_log import read_metrics

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.timeout(3000)]

TEXT = {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768, "use_sliding_window": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
    "tie_word_embeddings": True,
}  # fmt: skip
VISION = {
    "hidden_size": 128, "depth": 2, "num_heads": 4, "intermediate_size": 256, "patch_size": 14, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [1], "out_hidden_size": 896,
}  # fmt: skip
SETTINGS = {"optim": "sgd", "learning_rate": 0.05, "max_steps": 2, "publish_steps": 9, "save_strategy": "no"}
WAYS = {"full": {"micro_batch_tokens": 128}, "lora": {"use_peft": True, "lora_r": 16, "micro_batch_tokens": 128}}
NEEDED = 14 << 30
"""Bytes of memory for two ranks and what they publish."""


@pytest.fixture(scope="module")
def half_a_billion(tmp_path_factory) -> Path:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    path = tmp_path_factory.mktemp("half")
    write_processing(path, TinyModelConfig(temporal_patch_size=2))
    tokens = ModelTokens.load(path)
    config = Qwen2_5_VLConfig(
        text_config=TEXT, vision_config=VISION, image_token_id=tokens.image_pad_id, tie_word_embeddings=True,
        vision_start_token_id=tokens.vision_start_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    assert 0.45e9 < sum(item.numel() for item in model.parameters()) < 1e9
    model.save_pretrained(path)
    write_processing(path, TinyModelConfig(temporal_patch_size=2))  # over a generation config without our end token
    return path


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_of_half_a_billion_have_the_losses_of_one_process(way, recorded, half_a_billion, tmp_path):
    """The head in chunks of seven tokens, rows packed, two steps."""
    assert psutil.virtual_memory().available > NEEDED, "run it when 14 GiB of memory are free"
    logged = []
    for ranks in (1, 2):
        root = copy_run(recorded, tmp_path / str(ranks))
        shared = {"fsdp": True} if ranks > 1 else {}
        assert live(root, half_a_billion, "chunks", ranks=ranks, **SETTINGS, **WAYS[way], **shared) == [0] * ranks
        logged.append(list(read_metrics(root / "metrics.jsonl")))
    alone, together = logged
    assert len(alone) == len(together) == 2 and alone[0]["loss"] != alone[1]["loss"]
    for expected, found in zip(alone, together, strict=True):
        for name in ("loss", "grad_norm", "entropy"):
            assert found[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
