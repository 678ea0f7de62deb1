"""Models for the trainer's benchmark: random weights in the shapes of Qwen2.5-VL, and what a pass of them costs.

Random weights suffice: the time of a matrix product does not depend on its numbers. Ids come from the tiny model's
tokenizer, which every vocabulary here is larger than.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model, write_processing

TINY = TinyModelConfig(
    hidden_size=128,
    layers=4,
    intermediate_size=384,
    vision_hidden_size=64,
    vision_layers=2,
    vision_intermediate_size=192,
    max_length=16384,
    image_mean=0.5,
)
"""The tower does about as large a share of the work as in the 3B model."""

# Shapes of the published configurations.
TEXT = {
    "3b": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
           "intermediate_size": 11008, "vocab_size": 151936},
    "7b": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
           "intermediate_size": 18944, "vocab_size": 152064},
}  # fmt: skip
VISION = {
    "hidden_size": 1280, "depth": 32, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
MODELS = ("tiny", *TEXT)


def qwen_config(size: str, tokens: ModelTokens) -> Any:
    """The `Qwen2_5_VLConfig` of a published size, with the special ids of these tokens."""
    from transformers import Qwen2_5_VLConfig

    text = TEXT[size]
    return Qwen2_5_VLConfig(
        text_config={
            **text,
            "max_position_embeddings": 128000,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
            "tie_word_embeddings": size == "3b",
            "use_sliding_window": False,
        },
        vision_config={**VISION, "out_hidden_size": text["hidden_size"]},
        image_token_id=tokens.image_pad_id,
        vision_start_token_id=tokens.vision_start_id,
        tie_word_embeddings=size == "3b",
    )


def tower_of_7b(width: int) -> Any:
    """The tower of the 7B model with narrow layers: as many blocks, windows and whole images, at a share of the work.

    Args:
        width: of its layers; a multiple of 32.
    """
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

    small: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": width,
        "out_hidden_size": width,
        "num_heads": width // 16,
    }
    values: dict[str, Any] = {**VISION, **small}
    return Qwen2_5_VisionTransformerPretrainedModel(Qwen2_5_VLVisionConfig(**values)).eval()


def prepare(size: str, directory: Path, device: torch.device) -> tuple[Any, Path]:
    """A model in training mode, and a directory with its tokens and image settings.

    On the CPU float32; on a GPU bfloat16 with gradient checkpointing. The 7B model gets LoRA adapters on the language
    model's linear layers and a frozen tower; the others are trained whole.
    """
    from transformers import AutoModelForImageTextToText

    from dart_train.trainer.grpo_trainer import load_model

    if size == "tiny":
        build_tiny_model(directory, config=TINY)
        return load_model(directory).to(device).train(), directory
    write_processing(directory, TinyModelConfig(temporal_patch_size=2, image_mean=0.5, max_pixels=4096 * 28 * 28))
    config = qwen_config(size, ModelTokens.load(directory))
    with device:
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if size == "7b":
        model = with_lora(model)
    model.gradient_checkpointing_enable()
    return model.to(device).train(), directory


def with_lora(model: Any) -> Any:
    """The model with adapters of rank 32 on the language model; everything else is frozen."""
    from peft import LoraConfig, get_peft_model

    layers = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    return get_peft_model(model, LoraConfig(r=32, lora_alpha=64, target_modules=layers))


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations of a forward pass.

    Attributes:
        text: of a token in the language model, without attention and output layer.
        attention: of a token times the tokens that it sees.
        head: of a response token in the output layer.
        patch: of a patch in the tower, without attention.
        patch_attention: of a patch times the patches that it sees, in the blocks of full attention.
    """

    text: float
    attention: float
    head: float
    patch: float
    patch_attention: float

    @classmethod
    def of(cls, model: Any) -> Cost:
        """Count a model's matrices: two operations for each weight."""
        text, vision = model.config.text_config, model.config.vision_config
        layers = model.model.language_model.layers
        return cls(
            text=2.0 * sum(item.numel() for name, item in layers.named_parameters() if "lora" not in name),
            attention=4.0 * text.num_hidden_layers * text.hidden_size,
            head=2.0 * text.hidden_size * text.vocab_size,
            patch=2.0 * sum(item.numel() for item in model.model.visual.blocks.parameters()),
            patch_attention=4.0 * len(vision.fullatt_block_indexes) * vision.hidden_size,
        )

    def forward(self, row_lengths: list[int], responses: int, image_patches: list[int]) -> float:
        """Count the operations of rows of these lengths, response tokens and images' patches, with causal attention."""
        text = sum(self.text * length + self.attention * length * length / 2 for length in row_lengths)
        tower = sum(self.patch * patches + self.patch_attention * patches * patches for patches in image_patches)
        return text + tower + self.head * responses
