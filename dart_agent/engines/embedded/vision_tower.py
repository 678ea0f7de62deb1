"""Tower: the vision part of a Qwen-VL model, fast for many equal screens.

Where every block of a Qwen2.5-VL tower attends to whole images and all images have one size, patches of all images go
through each block as one batch. Everything else (window attention, mixed sizes, the other families) takes the model's
own forward pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dart_agent.engines.embedded.decoder import rms_norm
from dart_agent.models.families.family import Family

Grid = tuple[int, int, int]


class Tower:
    """Embeds patches. Reads the model's parameters afresh on every call."""

    def __init__(self, visual: Any, family: Family) -> None:
        """Wrap the `visual` of a model of a family."""
        self._visual = visual
        config = visual.config
        self._heads = config.num_heads
        # The batched pass is Qwen2.5-VL's, whose norms and rotary embedding the others do not share.
        own = family.model_type == "qwen2_5_vl"
        self._whole = own and family.whole_blocks(config) >= set(range(config.depth))
        self.levels = family.levels(config)
        self._rope: dict[Grid, tuple[Tensor, Tensor]] = {}

    def embed(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Patches to the embeddings of tokens.

        Args:
            patches: (sum of patches, patch size) normalised, images one after the other.
            grids: (frames, rows, columns) in patches of each image.

        Returns:
            (sum of tokens, levels, hidden of the text model): level 0 is the embedding, the others (Qwen3-VL) are
            added to the text model's first layers.
        """
        if not self._whole or len(set(grids)) > 1:
            grid = torch.tensor(grids, device=patches.device)
            out = self._visual(patches.to(self._visual.dtype), grid_thw=grid)
            return torch.stack([out.pooler_output, *(getattr(out, "deepstack_features", None) or ())], 1)
        weight = self._visual.patch_embed.proj.weight
        # The kernel covers a patch exactly, so the convolution is a matrix product (and 4 times as fast as one).
        hidden = F.linear(patches.to(weight.dtype), weight.flatten(1)).view(len(grids), -1, weight.shape[0])
        cos, sin = self._rope_of(grids[0], hidden)
        for block in self._visual.blocks:
            hidden = hidden + self._attend(block.attn, rms_norm(block.norm1, hidden), cos, sin)
            hidden = hidden + block.mlp(rms_norm(block.norm2, hidden))
        return self._visual.merger(hidden.flatten(0, 1))[:, None]

    def _attend(self, attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention of each image's patches to one another; hidden (images, patches, width)."""
        images, patches, width = hidden.shape
        states = attention.qkv(hidden).view(images, patches, 3, self._heads, width // self._heads)
        turned = states[:, :, :2]
        turned = (turned * cos + turned.roll(turned.shape[-1] // 2, -1) * sin).to(hidden.dtype)
        query, key, value = (part.transpose(1, 2) for part in (turned[:, :, 0], turned[:, :, 1], states[:, :, 2]))
        mixed = F.scaled_dot_product_attention(query, key, value)
        return attention.proj(mixed.transpose(1, 2).reshape(images, patches, width))

    def _rope_of(self, grid: Grid, like: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, signed sin) of one image, (patches, 1, 1, head size) float32."""
        if grid not in self._rope:
            _, rows, columns = grid
            merge = self._visual.spatial_merge_size
            places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
            # Patches of one token lie together: (row blocks, column blocks, rows within, columns within).
            places = places.view(rows // merge, merge, columns // merge, merge, 2).transpose(1, 2).reshape(-1, 2)
            inverse = self._visual.rotary_pos_emb.inv_freq.float().cpu()
            angles = (places[..., None].float() * inverse).flatten(1)
            cos, sin = angles.cos(), angles.sin()
            pair = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            self._rope[grid] = tuple(part[:, None, None].to(like.device) for part in pair)  # type: ignore[assignment]
        return self._rope[grid]
