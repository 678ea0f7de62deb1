"""Qwen3-VL: patches of 16 pixels, queries and keys normalised by head, deeper features added after the first layers."""

from typing import Any

from dart_agent.models.families.family import Family, TinyShape


def tiny_vision(shape: TinyShape) -> dict[str, Any]:
    """A tower with learned positions, whose deeper features are used too."""
    # Two levels at most: each needs a text layer to be added to.
    levels = list(range(min(2, shape.vision_layers, shape.layers)))
    return {
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": shape.vision_intermediate_size,
        "out_hidden_size": shape.hidden_size,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": levels,
    }


QWEN3_VL = Family(
    model_type="qwen3_vl",
    classes="Qwen3VL",
    patch_size=16,
    tiny_text=lambda shape: {"head_dim": shape.hidden_size // shape.heads},
    tiny_vision=tiny_vision,
    interleaved=True,
    deepstack=True,
)
