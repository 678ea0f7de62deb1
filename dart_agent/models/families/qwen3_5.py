"""Qwen3.5: most text layers are recurrent, the others have gated attention; a tower as Qwen3-VL's, without deepstack.

Three of four text layers are Gated DeltaNet, and of attention's heads a quarter is rotated; see Qwen/Qwen3.5-27B's
configuration and `Qwen3_5TextConfig` of transformers. Its mixtures of experts are a family of their own: `qwen3_5_moe`.
"""

from typing import Any

from dart_agent.models.families.family import LANGUAGE_LAYERS, Family, TinyShape

ADAPTED_LAYERS = (*LANGUAGE_LAYERS, "in_proj_qkv", "in_proj_z", "out_proj")
"""Those of the recurrent layers too."""


def tiny_text(shape: TinyShape) -> dict[str, Any]:
    """Both kinds of layers."""
    head = 2 * shape.hidden_size // shape.heads  # half of which is rotated, as much as in other families
    return {
        "head_dim": head,
        "partial_rotary_factor": 0.5,
        # Every second layer, so that two are enough for both kinds.
        "layer_types": ["full_attention" if layer % 2 else "linear_attention" for layer in range(shape.layers)],
        "linear_num_key_heads": max(1, shape.heads // 2),
        "linear_num_value_heads": max(2, shape.heads),
        "linear_key_head_dim": head,
        "linear_value_head_dim": head,
    }


def tiny_vision(shape: TinyShape) -> dict[str, Any]:
    """A tower with learned positions."""
    return {
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": shape.vision_intermediate_size,
        "out_hidden_size": shape.hidden_size,
        "num_position_embeddings": 64,
    }


QWEN3_5 = Family(
    model_type="qwen3_5",
    classes="Qwen3_5",
    processor="Qwen3VLProcessor",
    own_tokenizer=True,
    patch_size=16,
    tiny_text=tiny_text,
    tiny_vision=tiny_vision,
    interleaved=True,
    adapted=ADAPTED_LAYERS,
)
