"""The sizes of a model that memory and time follow from, read without loading it and without torch.

Numbers of weights come from the headers of safetensors files, so that they are right for every family; those of the
models that are published are in `published_models`, for a plan on a machine that has no copy of them.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dart_agent.models.families.family import Family
from dart_agent.models.families.family_table import FAMILIES, family_in, model_config
from dart_train.core.train_errors import DartTrainError
from dart_train.trainer.memory.published_models import PUBLISHED, published_shapes

_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
"""Bytes of a number, by the name of its type in safetensors files."""


@dataclass(frozen=True, slots=True)
class DeltaSize:
    """Gated DeltaNet, the recurrent layers of Qwen3.5.

    Attributes:
        channels: of the convolution: queries, keys and values.
        heads: of values; each has queries and keys, which several of them share in the weights.
        key: width of a head's keys.
        value: width of a head's values.
    """

    channels: int
    heads: int
    key: int
    value: int

    @classmethod
    def of(cls, text: Mapping[str, Any]) -> DeltaSize:
        """From the configuration of a text model that has such layers."""
        key, value = text["linear_key_head_dim"], text["linear_value_head_dim"]
        heads = text["linear_num_value_heads"]
        return cls(2 * text["linear_num_key_heads"] * key + heads * value, heads, key, value)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """One model.

    Attributes:
        root: weights of embeddings, last norm and head.
        whole_blocks: blocks of the tower that attend to whole images.
        merger: weights of the tower's mergers, which run once for each token instead of once for each patch.
        merge: patches a side that become one token.
        levels: of features that an image has.
        attending: text layers with keys and values; the others are recurrent.
        memory: numbers that all recurrent layers together remember of a text, however long it is.
        adapted: inputs and outputs of all layers that get an adapter, together.
        stored: bytes of a number in its files, which is what is published too.
        experts: of a layer, where layers are mixtures of them.
        routed: how many of them compute a token.
        expert: weights of one of them, in one layer.
        shared_expert: whether an expert with a gate computes every token beside them.
        normed_heads: whether queries and keys are normalised by head.
        gated: whether a gate for each head's values multiplies what attention gives.
        delta: the recurrent layers; None where every layer attends.
        tower_block: kind of the tower's blocks, a key of `saved_tensors.BLOCKS`.
        patch_inputs: numbers of a patch's pixels.
    """

    layers: int
    layer: int
    root: int
    tower: int
    hidden: int
    heads_width: int
    keys_width: int
    inner: int
    vocabulary: int
    depth: int
    tower_hidden: int
    tower_inner: int
    whole_blocks: int
    merger: int = 0
    merge: int = 2
    levels: int = 1
    attending: int = 0
    memory: int = 0
    adapted: int = 0
    stored: int = 2
    experts: int = 0
    routed: int = 0
    expert: int = 0
    shared_expert: bool = False
    normed_heads: bool = False
    gated: bool = False
    delta: DeltaSize | None = None
    tower_block: str = "gated"
    patch_inputs: int = 0

    @classmethod
    def of_directory(cls, model_dir: str | Path) -> ModelSize:
        """Read the size of the model in a directory.

        Raises:
            ConfigurationError: if the family is unknown.
            DartTrainError: if there are no safetensors files.
        """
        found = _header_in(Path(model_dir))
        widths = {item["dtype"]: math.prod(item["shape"]) for item in found.values()}
        shapes = {name: tuple(item["shape"]) for name, item in found.items()}
        family_in(model_dir)  # refuses one that is unknown
        size = cls.of(model_config(model_dir), shapes)
        return replace(size, stored=_WIDTHS.get(max(widths, key=lambda name: widths[name]), 4))

    @classmethod
    def published(cls, name: str) -> ModelSize:
        """A published size: a key of `PUBLISHED`."""
        return cls.of(PUBLISHED[name], published_shapes(PUBLISHED[name]))

    @classmethod
    def of(cls, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelSize:
        """From a model's configuration and the shapes of its weights; adapters are left out."""
        text, vision = config.get("text_config") or config, config["vision_config"]
        heads = text["num_attention_heads"]
        head_width = text.get("head_dim") or text["hidden_size"] // heads
        own = {name: math.prod(shape) for name, shape in shapes.items() if ".lora_" not in name and name[:4] != "mtp."}
        tower = sum(count for name, count in own.items() if "visual." in name)
        in_layers = sum(count for name, count in own.items() if "visual." not in name and ".layers." in name)
        tower_hidden = vision.get("embed_dim") or vision["hidden_size"]
        inner = vision.get("intermediate_size") or int(tower_hidden * vision.get("mlp_ratio", 4))
        experts, routed = _experts(text)
        in_experts = sum(count for name, count in own.items() if _of_experts(name))
        keys_width, wide = (text.get("num_key_value_heads") or heads) * head_width, text.get("intermediate_size", 0)
        if experts:
            wide = routed * text["moe_intermediate_size"] + text.get("shared_expert_intermediate_size", 0)
        recurrent = list(text.get("layer_types") or ()).count("linear_attention")
        return cls(
            layers=text["num_hidden_layers"],
            layer=in_layers // text["num_hidden_layers"],
            root=sum(own.values()) - tower - in_layers,
            tower=tower,
            hidden=text["hidden_size"],
            heads_width=heads * head_width,
            keys_width=keys_width,
            inner=wide,
            vocabulary=text["vocab_size"],
            depth=vision["depth"],
            tower_hidden=tower_hidden,
            tower_inner=inner,
            whole_blocks=len(vision.get("fullatt_block_indexes") or range(vision["depth"])),
            merger=sum(count for name, count in own.items() if "visual." in name and "merger" in name),
            merge=vision.get("spatial_merge_size", 2),
            levels=1 + len(vision.get("deepstack_visual_indexes") or ()),
            attending=text["num_hidden_layers"] - recurrent,
            memory=recurrent * _remembered(text) if recurrent else 0,
            adapted=sum(sum(shapes[name]) for name in own if _gets_adapter(name, FAMILIES[config["model_type"]])),
            experts=experts,
            routed=routed,
            expert=in_experts // (experts * text["num_hidden_layers"]) if experts else 0,
            shared_expert=bool(text.get("shared_expert_intermediate_size")),
            normed_heads=any(name.endswith("self_attn.q_norm.weight") for name in own),
            # Rows for gates beside those of queries.
            gated=any(
                name.endswith("self_attn.q_proj.weight") and shapes[name][0] > heads * head_width for name in own
            ),
            delta=DeltaSize.of(text) if recurrent else None,
            tower_block=_tower_block(own),
            patch_inputs=_patch_inputs(shapes),
        )

    @property
    def language(self) -> int:
        """Weights of the language model."""
        return self.layers * self.layer + self.root

    @property
    def total(self) -> int:
        """All weights."""
        return self.language + self.tower

    @property
    def active(self) -> int:
        """Weights of a layer that one token goes through: of a mixture those of the experts that it is routed to."""
        return self.layer - (self.experts - self.routed) * self.expert

    def of_rank(self, ranks: int) -> int:
        """Most weights of the language model that one of its ranks holds: experts are whole on one of them."""
        in_experts = self.layers * self.experts * self.expert
        return (self.language - in_experts) // ranks + self.layers * -(-self.experts // ranks) * self.expert

    def adapter(self, rank: int) -> int:
        """Numbers of a LoRA adapter on all linear layers of the language model."""
        return rank * self.adapted

    def forward_flops(self, tokens: int, attended: float, responses: int, patches: int, per_image: int) -> float:
        """Operations of a forward pass: two for each active weight, and attention to `attended` tokens on average."""
        text = 2.0 * self.layers * self.active * tokens + 4.0 * self.attending * self.heads_width * tokens * attended
        of_patch = self.tower - self.merger + self.merger / self.merge**2
        tower = 2.0 * of_patch * patches + 4.0 * self.whole_blocks * self.tower_hidden * patches * per_image
        return text + tower + 2.0 * self.hidden * self.vocabulary * responses


def _gets_adapter(name: str, family: Family) -> bool:
    """Return whether a weight is one of a layer that gets an adapter unless others are named."""
    if "visual." in name or _of_experts(name):
        return False
    return (
        re.fullmatch(family.adapted_layers + r"\.weight", f"language_model.{name.replace('.base_layer.', '.')}")
        is not None
    )


def _experts(text: Mapping[str, Any]) -> tuple[int, int]:
    """Experts of a layer, and how many of them compute a token; none where layers are no mixtures."""
    experts = text.get("num_experts") or text.get("num_local_experts") or 0
    return experts, min(experts, text.get("num_experts_per_tok") or 0)


def _of_experts(name: str) -> bool:
    """Return whether a weight belongs to experts that tokens are routed to."""
    return ".mlp.experts." in name


def _remembered(text: Mapping[str, Any]) -> int:
    """Return the numbers that a Gated DeltaNet layer keeps: the inputs of its convolution, and its memory."""
    delta = DeltaSize.of(text)
    return (text["linear_conv_kernel_dim"] - 1) * delta.channels + delta.heads * delta.key * delta.value


def _tower_block(names: Iterable[str]) -> str:
    """Return the kind of the tower's blocks by the names of their weights: only Qwen2.5-VL's have a gate."""
    inside = [name for name in names if "visual.blocks." in name]
    if any(".mlp.fc1." in name for name in inside):
        return "quick"
    return "plain" if any(".mlp.linear_fc1." in name for name in inside) else "gated"


def _patch_inputs(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the numbers of a patch's pixels, by the weights that read them."""
    found = (shape for name, shape in shapes.items() if name.endswith("visual.patch_embed.proj.weight"))
    return math.prod(next(found, (0, 0))[1:])


def _header_in(model_dir: Path) -> dict[str, dict[str, Any]]:
    """Type and shape of each weight of a directory, by the headers of its files."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(model_dir.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        found |= {name: item for name, item in header.items() if name != "__metadata__"}
    if not found:
        raise DartTrainError(f"{model_dir} has no safetensors files: there are no weights to plan for")
    return found
