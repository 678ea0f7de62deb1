"""A family of models: its differences from all others.

In common, and therefore nowhere here: Qwen's chat layout and special tokens, an image processor that `VisionSpec`
reads, three-dimensional rotary positions, a tower `model.visual`, text layers `model.language_model.layers` (which may
be recurrent: those have a `linear_attn`; or mixtures of experts: those have an `mlp.experts`), a head `lm_head`.

A new family is one file beside this one and its line in `family_table`. The tests of every family (engine, forward
pass, feature cache, fingerprints, `dart-train bench parity`) read the table, so they hold it as soon as it is there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LANGUAGE_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a language model with attention in every layer, by the last part of their names."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a tiny model, in no family's words.

    Attributes:
        heads: attention heads of both parts.
        vision_hidden_size: width of the vision tower.
        vision_intermediate_size: width of the tower's feed-forward part.
        window: patches a side of the tower's attention windows; 0 where every block attends to whole images.
        experts: of a layer, in families that are mixtures of them.
    """

    hidden_size: int
    layers: int
    heads: int
    vision_hidden_size: int
    vision_layers: int
    vision_intermediate_size: int
    window: int = 0
    experts: int = 4


def tiny_experts(shape: TinyShape) -> dict[str, Any]:
    """Experts of a tiny mixture. No matrix is square, so that files show which of its sides comes first."""
    return {
        "num_experts": shape.experts,
        "num_experts_per_tok": min(2, shape.experts),
        "moe_intermediate_size": shape.hidden_size * 3 // 4,
        "norm_topk_prob": True,  # published files say it, transformers always does it, and vLLM asks for it
    }


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models.

    Attributes:
        model_type: of its `config.json`.
        classes: prefix of its classes in transformers.
        tiny_text: what the text part of a tiny model's configuration has that others' do not.
        tiny_vision: the tower of a tiny model in the words of the family's configuration, but for depth, heads and
            the sizes of patches, which all spell the same.
        processor: name of its processor's class in transformers, where that is not called after the family.
        own_tokenizer: whether transformers reads the tokenizers of all its models by a class of its own.
        deepstack: whether features of deeper blocks of the tower are added to the images' places after the first text
            layers: engine and trainer carry as many levels of features as the tower gives.
        interleaved: whether the three axes of a position alternate along a head, instead of having a section each.
            transformers knows it by the family; vLLM reads it in `config.json`, where published files say it.
        whole_blocks: blocks of the tower that attend to whole images, given its configuration; the others attend to
            windows.
        adapted: layers of the language model that get a LoRA adapter unless others are named, by the last part of
            their names; experts that tokens are routed to get none.
        mixture: whether text layers are mixtures of experts, at `mlp.experts`.
        swapped_experts: whether files hold the experts' matrices with the inputs' side first; see `expert_weights`.
    """

    model_type: str
    classes: str
    patch_size: int
    tiny_text: Callable[[TinyShape], dict[str, Any]]
    tiny_vision: Callable[[TinyShape], dict[str, Any]]
    processor: str = ""
    own_tokenizer: bool = False
    deepstack: bool = False
    interleaved: bool = False
    whole_blocks: Callable[[Any], frozenset[int]] = lambda vision_config: frozenset(range(vision_config.depth))
    adapted: tuple[str, ...] = LANGUAGE_LAYERS
    mixture: bool = False
    swapped_experts: bool = False

    def levels(self, vision_config: Any) -> int:
        """How many vectors the tower gives for each token of an image: its embedding, and those of deeper blocks."""
        return 1 + (len(vision_config.deepstack_visual_indexes) if self.deepstack else 0)

    @property
    def adapted_layers(self) -> str:
        """Regular expression of the layers in `adapted`, by their whole names in the model."""
        return rf".*language_model\..*\.({'|'.join(self.adapted)})"

    @property
    def model_class(self) -> str:
        """Name of the class in transformers that holds tower, text model and head."""
        return f"{self.classes}ForConditionalGeneration"

    @property
    def processor_class(self) -> str:
        """Name of the processor's class in transformers."""
        return self.processor or f"{self.classes}Processor"
