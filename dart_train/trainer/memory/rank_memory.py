"""Bytes of one rank's device by what holds them, worked out from sizes. Pure; no torch.

The memory that a token keeps for the backward pass is in `saved_tensors`: exact for `sdpa` in float32 and under
autocast to bfloat16, and other kernels of attention keep as much. Tests hold the whole against what is taken on a CPU.

Two moments are compared: the passes (weights, gradients, moments, and the largest micro-batch), and the tower's own
pass, in which gathered gradients go through it. The larger is the peak.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.saved_tensors import all_layers_bytes, edge_bytes, patch_bytes, token_bytes

PATCHES_AT_ONCE = 1 << 15
"""Most patches in the vision tower at a time: three screenshots of 1932x1092."""
LOGITS_AT_ONCE = 1 << 27
"""Most logits computed at a time (0.5 GiB in float32): 512 tokens of 500 steps with 152 000 words are 155 GiB."""
WHOLE_GRADIENTS = 1 << 30
"""Bytes of gradients that each rank of `fsdp` may hold whole until the end of a step."""
MOMENTS = {"adamw": 8, "adam": 8, "sgd": 0, "adafactor": 1, "lion": 4, "rmsprop": 4, "adagrad": 4}
"""Bytes that an optimizer keeps for a trained number in float32, by the beginning of its name."""
LOGIT_COPIES = 6
"""Numbers in float32 for each logit while its chunk runs: probabilities, their logarithms, gradients."""


NCCL_BYTES = 1 << 30
"""Buffers of NCCL's channels on a rank, outside of torch's allocator, and the context of its kernels."""


USABLE = 0.97
"""Share of a device's memory that steps may plan with: the rest is of drivers and of what fragments."""


def usable_bytes(total: int, ranks: int) -> int:
    """Return how much of a device torch's allocator may take, next to NCCL's buffers if there are several ranks."""
    return int(USABLE * total) - (NCCL_BYTES if ranks > 1 else 0)


@dataclass(frozen=True, slots=True)
class Work:
    """One rank's share of a step.

    Attributes:
        tokens: of the largest micro-batch; of ranks that share rows (context parallelism), those of a rank's slice. The
            buffers of their exchanges are not counted: a layer's feed-forward part takes more, at another moment.
        responses: tokens that the rank predicts.
        images: distinct ones of the rank's share of a lease; where they do not recur, of a micro-batch.
        recurring: whether images occur in several micro-batches or passes, so that features are kept.
    """

    tokens: int
    responses: int
    images: int = 0
    image_patches: int = 0
    recurring: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of a rank that decide its memory.

    Attributes:
        sharded: whether they hold parts of the language model (`fsdp`).
        checkpointing: whether a layer's activations are computed again in the backward pass.
        offload_optimizer: whether moments are on the device in the optimizer's steps only.
        offload_activations: whether what checkpointing keeps of each layer is in the host's memory.
        half_base: whether weights under an adapter are kept in half precision.
        reshard: whether a layer is let go of between its forward and backward pass.
        reduce_once: whether sharded ranks hold their gradients whole until the end of a step; None as it fits.
    """

    ranks: int = 1
    sharded: bool = False
    half: bool = False
    checkpointing: bool = False
    trains_tower: bool = True
    lora_rank: int = 0
    half_base: bool = False
    reference: bool = False
    moments: int = 8
    features_bytes: int = 4096 << 20
    reshard: bool = True
    reduce_once: bool | None = None
    offload_optimizer: bool = False
    offload_activations: bool = False


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank.

    Attributes:
        held: all the time.
        passes: in passes.
        moments_on_host: of the optimizer, which are on the device in its steps only.
        activations_on_host: that are on the device for their layer's passes only.
    """

    held: Mapping[str, int]
    passes: Mapping[str, int]
    tower_pass: int = 0
    moments_on_host: int = 0
    activations_on_host: int = 0
    causes: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        found = dict(self.held) | dict(self.passes)
        if self.tower_pass:
            found["vision tower's pass"] = self.tower_pass
        object.__setattr__(self, "causes", {name: size for name, size in found.items() if size})

    @property
    def peak(self) -> int:
        """Most at any time."""
        return sum(self.held.values()) + max(sum(self.passes.values()), self.tower_pass, self.moments_on_host)


def moments_of(optimizer: str) -> int:
    """Bytes that an optimizer of `TrainingArguments.optim` keeps for a trained number; as AdamW for one unknown."""
    name = optimizer.lower()
    size = next((size for known, size in MOMENTS.items() if name.startswith(known)), 8)
    return size // 4 if "8bit" in name else size


def rank_memory(size: ModelSize, setting: Setting, work: Work) -> RankMemory:
    """Return what a rank's device holds, by cause."""
    parts = setting.ranks if setting.sharded else 1
    adapter = size.adapter(setting.lora_rank)
    part = size.of_rank(parts)
    trained = adapter // parts if adapter else part
    trained += size.tower if setting.trains_tower else 0
    whole = 4 * (adapter or size.language)
    once = whole <= WHOLE_GRADIENTS if setting.reduce_once is None else setting.reduce_once
    number, base = 2 if setting.half else 4, 2 if setting.half_base else 4
    cast = setting.half and not setting.sharded and not setting.half_base
    held = {
        "weights": base * (part + size.tower) + 4 * (adapter // parts),
        "gradients": 4 * trained + (whole if setting.sharded and once else 0),
        "optimizer": 0 if setting.offload_optimizer else setting.moments * trained,
        "reference": 4 * (part + size.tower) if setting.reference else 0,
    }
    kept, layer = (work.tokens * of_token for of_token in _activations(size, setting))
    passes = {
        "gathered layers": _gathered(size, setting, number, trains_weights=not adapter),
        "weights in half precision": 2 * (size.language + size.tower) if cast else 0,
        "features of images": _features(size, setting, work, number),
        "activations": kept + layer,
        "head in single precision": 4 * size.hidden * size.vocabulary if setting.half_base else 0,
        "logits": 0,
    }
    logits = 4 * LOGIT_COPIES * min(work.responses * size.vocabulary, LOGITS_AT_ONCE)
    if logits > layer:  # the head's pass has ended before the first layer's gradient is computed
        passes |= {"activations": kept, "logits": logits}
    on_host = {
        "moments_on_host": setting.moments * trained if setting.offload_optimizer else 0,
        "activations_on_host": work.tokens * _kept(size) if setting.offload_activations else 0,
    }
    own = _tower_pass(size, setting, work)
    if not work.recurring:  # the tower's graph is kept together with the text's
        passes["activations"] += own
        return RankMemory(held, passes, **on_host)
    return RankMemory(held, passes, own + passes["features of images"] if own else 0, **on_host)


def _gathered(size: ModelSize, setting: Setting, number: int, *, trains_weights: bool) -> int:
    """Embeddings, norm and head in float32, a layer and the next one, and the gradients of one on their way."""
    if not setting.sharded:
        return 0
    layers = 2 if setting.reshard else size.layers
    backward = (number + 4) * size.layer if trains_weights else 0
    reference = 4 * size.root + number * 2 * size.layer if setting.reference else 0
    return 4 * size.root + number * layers * size.layer + backward + reference


def _features(size: ModelSize, setting: Setting, work: Work, number: int) -> int:
    """Return the size of the kept features: of the policy, and of the reference if it has a tower of its own."""
    if not work.recurring:
        return 0
    each = work.image_patches // size.merge**2 * size.hidden * size.levels
    policy = min((number + (4 if setting.trains_tower else 0)) * each * work.images, setting.features_bytes)
    return policy + (min(number * each * work.images, setting.features_bytes) if setting.reference else 0)


def _activations(size: ModelSize, setting: Setting) -> tuple[int, int]:
    """Return what a token keeps of all layers, and what it takes besides while one layer's gradient is computed."""
    adapter, half = setting.lora_rank > 0, setting.half
    backward = (2 if half else 4) * (2 * size.inner + (3 + size.routed) * size.hidden)
    if not setting.checkpointing:
        return all_layers_bytes(size, half=half, adapter=adapter), backward
    kept = 0 if setting.offload_activations else _kept(size)
    return kept, token_bytes(size, half=half, adapter=adapter) + backward


def _kept(size: ModelSize) -> int:
    """Bytes of a token that checkpointing keeps of all text layers: their inputs."""
    return size.layers * 4 * size.hidden


def _tower_pass(size: ModelSize, setting: Setting, work: Work) -> int:
    """The tower with its graph, of as many images as run at a time."""
    patches = min(work.images * work.image_patches, max(PATCHES_AT_ONCE, work.image_patches))
    if not setting.trains_tower:
        return patches * patch_bytes(size, half=setting.half) // 2  # without a graph: one block's own
    of_block = patch_bytes(size, half=setting.half)
    kept = size.depth * 4 * size.tower_hidden + of_block if setting.checkpointing else size.depth * of_block
    return patches * (kept + edge_bytes(size, half=setting.half))
