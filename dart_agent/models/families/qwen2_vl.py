"""Qwen2-VL, UI-TARS v1: every block of the tower attends to whole images."""

from typing import Any

from dart_agent.models.families.family import Family, TinyShape


def _tiny_vision(shape: TinyShape) -> dict[str, Any]:
    return {
        "embed_dim": shape.vision_hidden_size,
        "hidden_size": shape.hidden_size,
        "mlp_ratio": shape.vision_intermediate_size // shape.vision_hidden_size,
    }


QWEN2_VL = Family(
    model_type="qwen2_vl",
    classes="Qwen2VL",
    patch_size=14,
    tiny_text=lambda shape: {"use_sliding_window": False},
    tiny_vision=_tiny_vision,
)
