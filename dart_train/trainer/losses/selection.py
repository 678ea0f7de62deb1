"""Which tokens or steps count, by the entropy of the distributions that their tokens were drawn from.

Both functions want the entropies of a whole optimizer batch: quantiles of a micro-batch's few steps are noise.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

TORCH_LIMIT = 1 << 24
"""Most values that `torch.quantile` takes."""


@dataclass(frozen=True, slots=True)
class EntropySelection:
    """Limits of a selection by entropy. The default keeps everything.

    Attributes:
        level: whole steps (DART) or single tokens (TRL).
        scope: the quantile of steps is taken in each group (DART), or in the whole batch.
    """

    keep: float = 1.0
    level: Literal["step", "token"] = "step"
    scope: Literal["group", "batch"] = "group"


def high_entropy_steps(step_entropies: Tensor, groups: Tensor, keep: float) -> Tensor:
    """DART's selection of steps: those whose mean token entropy reaches the (1 - keep) quantile of their group.

    1{H_t >= tau_D^(1-keep)}, H_t the masked mean over all generated tokens of the step, D the steps of one task.

    Args:
        step_entropies: (S,) of the whole batch.
        groups: (S,) integer group of each step; all equal for a quantile of the whole batch.
        keep: share of steps to keep, 0.8 in DART; 1 keeps all.

    Returns:
        (S,) boolean.
    """
    kept = torch.ones_like(step_entropies, dtype=torch.bool)
    if keep >= 1.0:
        return kept
    for group in groups.unique():
        members = groups == group
        values = step_entropies[members].double()
        kept[members] = values >= quantile(values, 1.0 - keep)
    return kept


def high_entropy_tokens(entropies: Tensor, mask: Tensor, keep: float) -> Tensor:
    """TRL's `top_entropy_quantile` (arXiv 2506.01939): tokens whose entropy reaches the (1 - keep) quantile of all."""
    if keep >= 1.0 or not bool(mask.any()):
        return mask.clone()
    return (entropies >= quantile(entropies[mask].float(), 1.0 - keep)) & mask


def quantile(values: Tensor, share: float) -> Tensor:
    """Linear quantile of (N,) values, also of more than `TORCH_LIMIT`: a large batch has more tokens."""
    if values.numel() <= TORCH_LIMIT:
        return torch.quantile(values, share)
    place = share * (values.numel() - 1)
    lower = int(place)
    low = values.kthvalue(lower + 1).values
    high = values.kthvalue(min(lower + 2, values.numel())).values
    return low + (high - low) * (place - lower)
