"""The images of a micro-batch as a Hugging Face model takes them."""

import torch
from torch import Tensor

from dart_train.trainer.batches.collator import MicroBatch


def pixel_values(batch: MicroBatch) -> Tensor | None:
    """(patches, patch_dim) float32; None without images. Cut anew on every call."""
    return batch.patches.tensors(batch.image_hashes)[0] if batch.image_hashes else None


def image_grid_thw(batch: MicroBatch) -> Tensor | None:
    """(images, 3) grids in patches; None without images."""
    return torch.tensor([batch.patches.grid(name) for name in batch.image_hashes]) if batch.image_hashes else None
