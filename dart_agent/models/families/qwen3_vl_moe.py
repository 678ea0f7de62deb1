"""Qwen3-VL's mixtures of experts (30B-A3B, 235B-A22B): its tower and attention, and 128 experts in each layer.

Of the 128, 8 compute a token. The published models' auxiliary loss of the router is not part of our losses.
"""

from dart_agent.models.families.family import Family, tiny_experts
from dart_agent.models.families.qwen3_vl import tiny_vision

QWEN3_VL_MOE = Family(
    model_type="qwen3_vl_moe",
    classes="Qwen3VLMoe",
    processor="Qwen3VLProcessor",
    patch_size=16,
    tiny_text=lambda shape: {"head_dim": shape.hidden_size // shape.heads} | tiny_experts(shape),
    tiny_vision=tiny_vision,
    interleaved=True,
    deepstack=True,
    mixture=True,
    swapped_experts=True,
)
