"""Qwen3.5's mixtures of experts (35B-A3B, Holo3): its layers, with 256 experts each and one that computes every token.

Of the 256, 8 compute a token. The published models' auxiliary loss of the router is not part of our losses.
"""

from typing import Any

from dart_agent.models.families.family import Family, TinyShape, tiny_experts
from dart_agent.models.families.qwen3_5 import ADAPTED_LAYERS, tiny_text, tiny_vision


def _tiny_text(shape: TinyShape) -> dict[str, Any]:
    own = {"shared_expert_intermediate_size": shape.hidden_size}
    return tiny_text(shape) | tiny_experts(shape) | own


QWEN3_5_MOE = Family(
    model_type="qwen3_5_moe",
    classes="Qwen3_5Moe",
    processor="Qwen3VLProcessor",
    own_tokenizer=True,
    patch_size=16,
    tiny_text=_tiny_text,
    tiny_vision=tiny_vision,
    interleaved=True,
    adapted=ADAPTED_LAYERS,
    mixture=True,
)
