"""Qwen2.5-VL, UI-TARS-1.5: most blocks of the tower attend to windows of 8x8 patches, a few to whole images."""

from typing import Any

from dart_agent.models.families.family import Family, TinyShape


def _tiny_vision(shape: TinyShape) -> dict[str, Any]:
    whole = list(range(1 if shape.window else 0, shape.vision_layers))
    return {
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": shape.vision_intermediate_size,
        "out_hidden_size": shape.hidden_size,
        "tokens_per_second": 2,
        "window_size": (shape.window or 8) * QWEN2_5_VL.patch_size,
        "fullatt_block_indexes": whole,
    }


QWEN2_5_VL = Family(
    model_type="qwen2_5_vl",
    classes="Qwen2_5_VL",
    patch_size=14,
    tiny_text=lambda shape: {"use_sliding_window": False},
    tiny_vision=_tiny_vision,
    whole_blocks=lambda vision_config: frozenset(vision_config.fullatt_block_indexes),
)
