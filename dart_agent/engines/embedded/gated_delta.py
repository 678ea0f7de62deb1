"""Gated DeltaNet, the recurrent layers of Qwen3.5, with what they remember in the caller's hands.

The arithmetic and the parameters are those of transformers' `Qwen3_5GatedDeltaNet`, whose functions compute it (on a
GPU the kernels of the package fla, where it is installed). The module itself keeps its memory in a cache that cannot
be cut, and in rows without a cache lets one sample's memory run into the next; so engine and trainer do these three
steps themselves, the engine with a memory for each row, the trainer with one for each segment.

Invariant: a token whose convolved input is zero leaves a memory of nothing as it is, and one whose `beta` and `decay`
are zero leaves any memory as it is. So padding is exact, on the left by the former and on the right by the latter.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def project(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what each token brings, before tokens are mixed.

    Args:
        module: a `Qwen3_5GatedDeltaNet`.
        hidden: (..., width) normalised input of the layer.

    Returns:
        (..., channels) inputs of the convolution; (..., heads) `beta`, how much of the memory is written anew, in
        [0, 1]; (..., heads) float32 `decay`, the logarithm of what is kept of the memory.
    """
    decay = -module.A_log.float().exp() * F.softplus(module.in_proj_a(hidden).float() + module.dt_bias)
    return module.in_proj_qkv(hidden), module.in_proj_b(hidden).sigmoid(), decay


def recur(
    module: Any,
    inputs: Tensor,
    beta: Tensor,
    decay: Tensor,
    memory: Tensor | None,
    *,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mix the tokens of rows that begin with a memory.

    Args:
        module: a `Qwen3_5GatedDeltaNet`.
        inputs: (N, kernel - 1 + L, channels) of the convolution: those of the tokens before, zero at a beginning, and
            of the L tokens.
        beta: (N, L, heads).
        decay: (N, L, heads).
        memory: (N, heads, key size, value size) after the tokens before; None at a beginning.
        weight: (channels, 1, kernel) of the convolution, where channels and heads are a part of the module's; None for
            all.

    Returns:
        (N, L, heads, value size), and the memory after the last token, float32.
    """
    # Here, so that what reads positions or screenshots does not load a model's code.
    from transformers.activations import ACT2FN
    from transformers.models.qwen3_5 import modeling_qwen3_5 as published

    weight = module.conv1d.weight if weight is None else weight
    times = module.num_v_heads // module.num_k_heads
    keys = beta.shape[-1] // times * module.head_k_dim
    convolved = F.conv1d(inputs.transpose(1, 2).to(weight.dtype), weight, module.conv1d.bias, groups=weight.shape[0])
    mixed = ACT2FN[module.activation](convolved).transpose(1, 2).to(inputs.dtype)
    query, key, value = mixed.split([keys, keys, mixed.shape[-1] - 2 * keys], -1)
    query, key = (part.unflatten(-1, (-1, module.head_k_dim)).repeat_interleave(times, 2) for part in (query, key))
    # Kernels of the recurrent form have no backward pass.
    name = "recurrent" if beta.shape[1] == 1 and not torch.is_grad_enabled() else "chunk"
    return getattr(published, f"torch_{name}_gated_delta_rule")(
        query,
        key,
        value.unflatten(-1, (-1, module.head_v_dim)),
        g=decay,
        beta=beta,
        initial_state=memory,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


def finish(module: Any, mixed: Tensor, hidden: Tensor) -> Tensor:
    """(..., width) output of the layer, of (..., heads, value size) mixed values and the layer's input."""
    gate = module.in_proj_z(hidden).view(-1, module.head_v_dim)
    return module.out_proj(module.norm(mixed.reshape(-1, module.head_v_dim), gate).view(*hidden.shape[:-1], -1))
