"""Check before a step that it fits into memory, and explanation of what uses the memory if it does not.

Ranks that hold parts of a model cannot make a step again: the others wait for this one's weights in the middle of a
pass. So they look before the first pass, all together, and cut the step smaller where one of them would not have room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import RankMemory, Setting, Work, rank_memory

if TYPE_CHECKING:
    from dart_train.trainer.batches.collator import MicroBatch

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of one trainer's steps on this rank; with `limit` None nothing is checked before a step."""

    size: ModelSize
    setting: Setting
    limit: int | None = None

    def of(self, batches: Sequence[MicroBatch], *, recurring: bool = True) -> RankMemory:
        """With the largest of these micro-batches and all images; `recurring`: whether their features are kept."""
        images = {name: batch for batch in batches for name in batch.image_hashes}
        work = Work(
            tokens=max(batch.input_ids.numel() for batch in batches),
            responses=max(batch.num_tokens for batch in batches),
            images=len(images) if recurring else max(len(batch.image_hashes) for batch in batches),
            image_patches=max((prod(batch.patches.grid(name)) for name, batch in images.items()), default=0),
            recurring=recurring,
        )
        return rank_memory(self.size, self.setting, work)

    def fits(self, batches: Sequence[MicroBatch]) -> bool:
        """Return whether there is room for these micro-batches."""
        return self.limit is None or self.of(batches).peak <= self.limit

    def explained(self, batches: Sequence[MicroBatch]) -> str:
        """Return what holds the memory, and what to do, for a message."""
        found = self.of(batches)
        room = "" if self.limit is None else f" of {in_units(self.limit)}"
        return (
            f"this rank takes {in_units(found.peak)}{room}: {listed(found.causes)}. To change that, by what it is "
            f"worth: {remedies(found.causes, self.setting)}"
        )


def in_units(size: int) -> str:
    """Bytes in GiB or MiB."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"


def listed(causes: Mapping[str, int]) -> str:
    """Causes with their sizes, the largest first."""
    ordered = sorted(causes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {in_units(size)}" for name, size in ordered if size)


def remedies(causes: Mapping[str, int], setting: Setting) -> str:
    """Return what to change, by the largest causes. Pure."""
    weights = "take more ranks" if setting.sharded else "set fsdp: true and take more ranks"
    weights += "" if setting.lora_rank else ", or set use_peft: true"
    activations = "" if setting.offload_activations else "set offload_activations: true, "
    activations = activations if setting.checkpointing else "set gradient_checkpointing: true, "
    sharing = ", or let more ranks share a row (context_parallel)" if setting.sharded else ""
    known = {
        "weights": weights,
        "gradients": weights,
        "optimizer": weights,
        "reference": "set beta: 0, or use_peft: true, whose reference is the model without its adapter",
        "features of images": "set image_features_mb lower",
        "activations": f"{activations}keep fewer screenshots in prompts, or set micro_batch_tokens lower{sharing}",
        "vision tower's pass": "set freeze_vision: true"
        + ("" if setting.checkpointing else " or gradient_checkpointing"),
    }
    ordered = sorted(causes, key=lambda name: -causes[name])
    found = dict.fromkeys(known[name] for name in ordered if causes[name] and name in known)
    return "; ".join(list(found)[:3])
