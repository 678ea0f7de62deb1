"""Weights of a mixture's experts: in memory two tensors a layer, in files one of three layouts.

In memory, as transformers computes: `mlp.experts.gate_up_proj` (experts, 2 x inner, hidden), whose gates come first,
and `mlp.experts.down_proj` (experts, hidden, inner). Files hold them

    - so (published Qwen3.5),
    - under the same names with the two sides of each matrix swapped (published Qwen3-VL),
    - as matrices of their own, `mlp.experts.7.gate_proj.weight`: transformers saves some models so.

Invariants:
    - All three are read; which one it is shows in names and shapes.
    - Written is the published layout of the family alone: vLLM takes fused tensors in no other, and transformers' own
      `save_pretrained` does not keep to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dart_agent.models.families.family import Family
from dart_agent.models.families.family_table import family_of

if TYPE_CHECKING:
    from torch import Tensor

FUSED = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
_OWN = re.compile(r"(?P<before>.*\.mlp\.experts)\.(?P<expert>\d+)\.(?P<which>gate|up|down)_proj\.weight")


class ExpertMatrix(NamedTuple):
    """A matrix of one expert.

    Attributes:
        fused: name of the tensor that it is a part of.
        half: 1 for the second half of the expert's rows, 0 for the first or all.
    """

    fused: str
    expert: int
    half: int


def expert_matrix(name: str) -> ExpertMatrix | None:
    """Return what a tensor of this name is, where it belongs to one expert."""
    found = _OWN.fullmatch(name)
    if found is None:
        return None
    which = found["which"]
    fused = "down_proj" if which == "down" else "gate_up_proj"
    return ExpertMatrix(f"{found['before']}.{fused}", int(found["expert"]), int(which == "up"))


def is_fused(name: str) -> bool:
    """Return whether a tensor of this name holds a matrix of every expert."""
    return name.endswith(FUSED)


def is_swapped(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether the matrices of a fused tensor have to be turned to be of the wanted shape."""
    return shape != wanted and len(shape) == len(wanted) == 3 and (shape[0], shape[2], shape[1]) == wanted


def all_matrices(fused: str, experts: int) -> set[tuple[int, int]]:
    """(expert, half) of the matrices that a fused tensor is made of."""
    halves = (0,) if fused.endswith(FUSED[1]) else (0, 1)
    return {(expert, half) for expert in range(experts) for half in halves}


def in_memory(loaded: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return tensors of files by names and shapes in memory; what does not fit stays as it is, for the caller to tell.

    Args:
        loaded: by names in memory, but for matrices of one expert.
        shapes: of the model's tensors.
    """
    import torch

    found: dict[str, Tensor] = {}
    parts: dict[str, dict[tuple[int, int], tuple[str, Tensor]]] = {}
    for name, tensor in loaded.items():
        matrix = expert_matrix(name)
        if matrix is not None:
            parts.setdefault(matrix.fused, {})[matrix.expert, matrix.half] = (name, tensor)
        elif is_fused(name) and name in shapes and is_swapped(tuple(tensor.shape), tuple(shapes[name])):
            found[name] = tensor.transpose(1, 2)
        else:
            found[name] = tensor
    for fused, matrices in parts.items():
        experts = shapes[fused][0] if fused in shapes else 0
        if matrices.keys() == all_matrices(fused, experts):
            rows = [matrices[place][1] for place in sorted(matrices)]
            found[fused] = torch.cat(rows).view(experts, -1, rows[0].shape[-1])
        else:
            found |= dict(matrices.values())
    return found


def as_published(name: str, tensor: Tensor, family: Family) -> Tensor:
    """Return a tensor in memory as the family's files hold it."""
    return tensor.transpose(1, 2) if family.swapped_experts and is_fused(name) else tensor


def save_model(model: Any, directory: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write weights and configuration as `save_pretrained` does, experts in the published layout.

    Args:
        model: of a known family.
        directory: where to write.
        weights: as files hold them (`as_published`) by names in memory; the model's own by default.
    """
    family = family_of(model.config)
    if not family.mixture:
        model.save_pretrained(directory, state_dict=weights)
        return
    if weights is None:
        weights = {name: as_published(name, tensor, family).contiguous() for name, tensor in model.state_dict().items()}
    model.save_pretrained(directory, state_dict=weights, save_original_format=False)
