"""Published models, for a plan on a machine that has no copy of them: their configurations and the shapes of weights.

A test holds the shapes against the models that transformers builds of the same configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Shapes = dict[str, tuple[int, ...]]

_VISION_2_5 = {
    "hidden_size": 1280, "depth": 32, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
_VISION_3 = {
    "hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "3b": {
        "model_type": "qwen2_5_vl",
        "text_config": {
            "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
            "intermediate_size": 11008, "vocab_size": 151936,
        },
        "vision_config": _VISION_2_5 | {"out_hidden_size": 2048}, "tie_word_embeddings": True,
    },
    "7b": {
        "model_type": "qwen2_5_vl",
        "text_config": {
            "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "intermediate_size": 18944, "vocab_size": 152064,
        },
        "vision_config": _VISION_2_5 | {"out_hidden_size": 3584}, "tie_word_embeddings": False,
    },
    "qwen3-vl-30b-a3b": {
        "model_type": "qwen3_vl_moe",
        "text_config": {
            "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
            "vocab_size": 151936,
        },
        "vision_config": _VISION_3 | {"deepstack_visual_indexes": [8, 16, 24]}, "tie_word_embeddings": False,
    },
    "qwen3.5-35b-a3b": {
        "model_type": "qwen3_5_moe",
        "text_config": {
            "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256,
            "num_experts_per_tok": 8, "vocab_size": 248320, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
        },
        "vision_config": _VISION_3, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Configurations by the name that `dart-train plan --model` takes: UI-TARS-1.5-7B is the "7b" of Qwen2.5-VL."""


def published_shapes(config: dict[str, Any]) -> Shapes:
    """Return the shape of each weight of a configuration in `PUBLISHED`, by its name in memory."""
    text, vision = config["text_config"], config["vision_config"]
    newer = config["model_type"] != "qwen2_5_vl"
    vocabulary, width = text["vocab_size"], text["hidden_size"]
    found: Shapes = {"model.language_model.embed_tokens.weight": (vocabulary, width)}
    for layer in range(text["num_hidden_layers"]):
        weights = (_mixture if newer else _dense)(text, layer)
        found |= {f"model.language_model.layers.{layer}.{name}": shape for name, shape in weights}
    found["model.language_model.norm.weight"] = (width,)
    found |= {f"model.visual.{name}": shape for name, shape in (_tower_3 if newer else _tower_2_5)(vision)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocabulary, width)
    return found


def _dense(text: dict[str, Any], layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A layer of Qwen2.5-VL."""
    width, inner = text["hidden_size"], text["intermediate_size"]
    keys = width // text["num_attention_heads"] * text["num_key_value_heads"]
    yield from _linear("self_attn.q_proj", width, width)
    yield from _linear("self_attn.k_proj", keys, width)
    yield from _linear("self_attn.v_proj", keys, width)
    yield "self_attn.o_proj.weight", (width, width)
    yield from _feed_forward("mlp", width, inner)
    yield from _norms(width)


def _mixture(text: dict[str, Any], layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A layer of Qwen3-VL-MoE or Qwen3.5-MoE."""
    width, experts = text["hidden_size"], text["num_experts"]
    inner = text["moe_intermediate_size"]
    kinds = text.get("layer_types")
    if kinds and kinds[layer] == "linear_attention":
        yield from _recurrent(text)
    else:
        head = text["head_dim"]
        queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
        yield "self_attn.q_proj.weight", (queries * (2 if kinds else 1), width)  # gates too
        yield "self_attn.k_proj.weight", (keys, width)
        yield "self_attn.v_proj.weight", (keys, width)
        yield "self_attn.o_proj.weight", (width, queries)
        yield "self_attn.q_norm.weight", (head,)
        yield "self_attn.k_norm.weight", (head,)
    yield "mlp.gate.weight", (experts, width)
    yield "mlp.experts.gate_up_proj", (experts, 2 * inner, width)
    yield "mlp.experts.down_proj", (experts, width, inner)
    if shared := text.get("shared_expert_intermediate_size"):
        yield from _feed_forward("mlp.shared_expert", width, shared)
        yield "mlp.shared_expert_gate.weight", (1, width)
    yield from _norms(width)


def _recurrent(text: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Gated DeltaNet."""
    width = text["hidden_size"]
    heads, head = text["linear_num_value_heads"], text["linear_value_head_dim"]
    values = heads * head
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
    yield "linear_attn.in_proj_qkv.weight", (channels, width)
    yield "linear_attn.in_proj_z.weight", (values, width)
    yield "linear_attn.in_proj_b.weight", (heads, width)
    yield "linear_attn.in_proj_a.weight", (heads, width)
    yield "linear_attn.conv1d.weight", (channels, 1, text["linear_conv_kernel_dim"])
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.norm.weight", (head,)
    yield "linear_attn.out_proj.weight", (width, values)


def _tower_2_5(vision: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tower of Qwen2.5-VL."""
    width, patch = vision["hidden_size"], vision["patch_size"]
    yield "patch_embed.proj.weight", (width, 3, vision["temporal_patch_size"], patch, patch)
    for block in range(vision["depth"]):
        weights = [
            ("norm1.weight", (width,)),
            ("norm2.weight", (width,)),
            *_linear("attn.qkv", 3 * width, width),
            *_linear("attn.proj", width, width),
            *_linear("mlp.gate_proj", vision["intermediate_size"], width),
            *_linear("mlp.up_proj", vision["intermediate_size"], width),
            *_linear("mlp.down_proj", width, vision["intermediate_size"]),
        ]
        yield from ((f"blocks.{block}.{name}", shape) for name, shape in weights)
    merged = width * vision["spatial_merge_size"] ** 2
    yield "merger.ln_q.weight", (width,)
    yield from _linear("merger.mlp.0", merged, merged)
    yield from _linear("merger.mlp.2", vision["out_hidden_size"], merged)


def _tower_3(vision: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tower of Qwen3-VL and Qwen3.5."""
    width, inner = vision["hidden_size"], vision["intermediate_size"]
    patch = vision["patch_size"]
    yield "patch_embed.proj.weight", (width, 3, vision["temporal_patch_size"], patch, patch)
    yield "patch_embed.proj.bias", (width,)
    yield "pos_embed.weight", (vision["num_position_embeddings"], width)
    for block in range(vision["depth"]):
        weights = [
            ("norm1.weight", (width,)),
            ("norm1.bias", (width,)),
            ("norm2.weight", (width,)),
            ("norm2.bias", (width,)),
            *_linear("attn.qkv", 3 * width, width),
            *_linear("attn.proj", width, width),
            *_linear("mlp.linear_fc1", inner, width),
            *_linear("mlp.linear_fc2", width, inner),
        ]
        yield from ((f"blocks.{block}.{name}", shape) for name, shape in weights)
    merged = width * vision["spatial_merge_size"] ** 2
    deeper = [f"deepstack_merger_list.{level}" for level in range(len(vision.get("deepstack_visual_indexes", ())))]
    for merger in ("merger", *deeper):
        normed = width if merger == "merger" else merged
        yield f"{merger}.norm.weight", (normed,)
        yield f"{merger}.norm.bias", (normed,)
        yield from _linear(f"{merger}.linear_fc1", merged, merged)
        yield from _linear(f"{merger}.linear_fc2", vision["out_hidden_size"], merged)


def _linear(name: str, outputs: int, inputs: int) -> list[tuple[str, tuple[int, ...]]]:
    """A layer with a bias."""
    return [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]


def _feed_forward(name: str, width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.gate_proj.weight", (inner, width)
    yield f"{name}.up_proj.weight", (inner, width)
    yield f"{name}.down_proj.weight", (width, inner)


def _norms(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm.weight", (width,)
    yield "post_attention_layernorm.weight", (width,)
