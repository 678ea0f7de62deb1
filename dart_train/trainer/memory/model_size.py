"""The sizes of a model that memory and time follow from, read without loading it and without torch.

Numbers of weights come from the headers of safetensors files, so that they are right for every family; the shapes of
the published models stand here too, for a plan on a machine that has no copy of them.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dart_agent.models.families.family_table import family_in, model_config
from dart_train.core.train_errors import DartTrainError

_VISION_7B = {
    "hidden_size": 1280, "depth": 32, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "3b": {
        "text_config": {
            "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
            "intermediate_size": 11008, "vocab_size": 151936,
        },
        "vision_config": _VISION_7B | {"out_hidden_size": 2048}, "tie_word_embeddings": True,
    },
    "7b": {
        "text_config": {
            "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
            "intermediate_size": 18944, "vocab_size": 152064,
        },
        "vision_config": _VISION_7B | {"out_hidden_size": 3584}, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Configurations of Qwen2.5-VL's published sizes, UI-TARS-1.5-7B's among them."""
_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
"""Bytes of a number, by the name of its type in safetensors files."""


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

    @classmethod
    def of_directory(cls, model_dir: str | Path) -> ModelSize:
        """Read the size of the model in a directory.

        Raises:
            ConfigurationError: if the family is unknown.
            DartTrainError: if there are no safetensors files.
        """
        layers = re.compile(family_in(model_dir).adapted_layers + r"\.weight")
        found = _header_in(Path(model_dir))
        widths = {item["dtype"]: math.prod(item["shape"]) for item in found.values()}
        numbers = {name: math.prod(item["shape"]) for name, item in found.items()}
        size = cls.of(model_config(model_dir), numbers)
        sides = sum(
            sum(item["shape"])
            for name, item in found.items()
            if name[:4] != "mtp." and "visual." not in name and layers.fullmatch(f"language_model.{name}")
        )
        return replace(size, adapted=sides, stored=_WIDTHS.get(max(widths, key=lambda name: widths[name]), 4))

    @classmethod
    def published(cls, name: str) -> ModelSize:
        """A published size: a key of `PUBLISHED`."""
        return cls.of(PUBLISHED[name], _numbers_of(PUBLISHED[name]))

    @classmethod
    def of(cls, config: Mapping[str, Any], numbers: Mapping[str, int]) -> ModelSize:
        """From a model's configuration and how many numbers each of its weights has; adapters are left out."""
        text, vision = config.get("text_config") or config, config["vision_config"]
        heads = text["num_attention_heads"]
        head_width = text.get("head_dim") or text["hidden_size"] // heads
        own = {name: count for name, count in numbers.items() if ".lora_" not in name and name[:4] != "mtp."}
        tower = sum(count for name, count in own.items() if "visual." in name)
        in_layers = sum(count for name, count in own.items() if "visual." not in name and ".layers." in name)
        tower_hidden = vision.get("embed_dim") or vision["hidden_size"]
        inner = vision.get("intermediate_size") or int(tower_hidden * vision.get("mlp_ratio", 4))
        keys_width, wide = (text.get("num_key_value_heads") or heads) * head_width, text["intermediate_size"]
        sides = 4 * text["hidden_size"] + 2 * heads * head_width + 2 * keys_width + 3 * (text["hidden_size"] + wide)
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
            adapted=text["num_hidden_layers"] * sides,
        )

    @property
    def language(self) -> int:
        """Weights of the language model."""
        return self.layers * self.layer + self.root

    @property
    def total(self) -> int:
        """All weights."""
        return self.language + self.tower

    def adapter(self, rank: int) -> int:
        """Numbers of a LoRA adapter on all linear layers of the language model."""
        return rank * self.adapted

    def forward_flops(self, tokens: int, attended: float, responses: int, patches: int, per_image: int) -> float:
        """Operations of a forward pass: two for each weight, and attention to `attended` tokens on average."""
        text = 2.0 * self.layers * self.layer * tokens + 4.0 * self.attending * self.heads_width * tokens * attended
        of_patch = self.tower - self.merger + self.merger / self.merge**2
        tower = 2.0 * of_patch * patches + 4.0 * self.whole_blocks * self.tower_hidden * patches * per_image
        return text + tower + 2.0 * self.hidden * self.vocabulary * responses


def _remembered(text: Mapping[str, Any]) -> int:
    """Return the numbers that a Gated DeltaNet layer keeps: the inputs of its convolution, and its memory."""
    keys, values = text["linear_num_key_heads"], text["linear_num_value_heads"]
    key, value = text["linear_key_head_dim"], text["linear_value_head_dim"]
    return (text["linear_conv_kernel_dim"] - 1) * (2 * keys * key + values * value) + values * key * value


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


def _numbers_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The same of a configuration in `PUBLISHED`."""
    text, vision = config["text_config"], config["vision_config"]
    width = text["hidden_size"]
    inner = text["intermediate_size"]
    wide = vision["hidden_size"]
    keys = width // text["num_attention_heads"] * text["num_key_value_heads"]
    layer = 2 * width * width + width + 2 * (width + 1) * keys + 3 * width * inner + 2 * width
    own = vision["intermediate_size"]
    block = (wide + 1) * 3 * wide + (wide + 1) * wide + 3 * wide * own + 2 * own + wide + 2 * wide
    merged = wide * vision["spatial_merge_size"] ** 2
    patch = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    embeddings = text["vocab_size"] * width
    return {
        "model.layers.all": layer * text["num_hidden_layers"],
        "visual.blocks": block * vision["depth"] + patch * wide,
        "visual.merger": wide + (merged + 1) * (merged + vision["out_hidden_size"]),
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": width,
        "lm_head.weight": 0 if config["tie_word_embeddings"] else embeddings,
    }
