"""GUI-Actor's head: the state of one token chooses among the patches of a screenshot. torch alone.

After GUI-Actor (arXiv 2506.03143, section 3): with the patches' embeddings V (M, d) as the language model takes them
in, and the last hidden state h (d) of the token <ACTOR>,

    V' = LayerNorm(V + Dropout(SelfAttention(V)))      k_j = MLP_v(V'_j)      q = MLP_t(h)
    a  = softmax_j(q . k_j / sqrt(d))                  loss = KL(uniform over the target's patches || a)

Invariants:
    - Parameters have the names of the released checkpoints, which therefore load unchanged.
    - It computes in float32, whatever the backbone does: what comes out are log-probabilities.
    - Attached to a backbone, for engines and trainers, it drops nothing out: both compute the same numbers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dart_agent.models.model_tokens import ModelTokens

DROPOUT = 0.1  # published, as are eight heads
FOLDER, ATTRIBUTE = "pointer_head", "multi_patch_pointer_head"
"""Where the head lies beside a model's files, and what it is called among the tensors of a released checkpoint."""


class PointerHead(nn.Module):
    """From patches and a state to log-probabilities; `width` of the hidden states, `inner` of the MLPs."""

    actor_id = -1
    """Id of the token <ACTOR> of the backbone that the head is attached to."""

    def __init__(self, width: int, inner: int, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(width, 8, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(width)
        self.projection_enc = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        self.projection_dec = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, patches: Tensor, state: Tensor, real: Tensor) -> Tensor:
        """From padded patches (B, M, d), state (B, d), True on real patches (B, M): (B, M), -inf on padding."""
        patches, state = patches.float(), state.float()
        mixed, _ = self.self_attention(patches, patches, patches, key_padding_mask=~real, need_weights=False)
        keys = self.projection_enc(self.layer_norm(patches + self.dropout(mixed)))
        logits = torch.einsum("bmd,bd->bm", keys, self.projection_dec(state)) / keys.shape[-1] ** 0.5
        return logits.masked_fill(~real, -torch.inf).log_softmax(-1)

    def choices(self, patches: Sequence[Tensor], states: Tensor) -> Tensor:
        """From the (patches, d) of each row and states (B, d): as `forward`, M the largest number of patches."""
        counts = torch.tensor([len(own) for own in patches], device=states.device)
        padded = pad_sequence(list(patches), True)
        return self(padded, states, torch.arange(padded.shape[1], device=states.device) < counts[:, None])


def head_weights(model_dir: str | Path) -> dict[str, Tensor]:
    """The tensors of a directory's head in float32, ours or those of a released checkpoint; none without a head."""
    beside = Path(model_dir) / FOLDER
    prefix = "" if beside.is_dir() else f"{ATTRIBUTE}."
    found: dict[str, Tensor] = {}
    for path in sorted((beside if beside.is_dir() else Path(model_dir)).glob("*.safetensors")):
        with safe_open(str(path), "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  # no mapping
            found |= {name.removeprefix(prefix): file.get_tensor(name).float() for name in names}
    return found


def attach_head(model: Any, model_dir: str | Path) -> PointerHead | None:
    """Make the head of a directory a part of the backbone that was loaded from it; None where it has none."""
    if not (weights := head_weights(model_dir)):
        return None
    head = PointerHead(len(weights["layer_norm.weight"]), len(weights["projection_enc.0.weight"]), dropout=0.0)
    head.load_state_dict(weights)
    if (Path(model_dir) / "tokenizer.json").is_file():  # a state that training resumes from has none
        found = ModelTokens.load(model_dir).actor_id
        head.actor_id = head.actor_id if found is None else found
    setattr(model, ATTRIBUTE, head.to(model.device).train(model.training))
    return head


def pointer_loss(logprobs: Tensor, targets: Tensor) -> Tensor:
    """Mean over rows of KL(uniform || attention) in nats; (B, M) each, `targets` True on one patch a row at least."""
    count = targets.sum(-1)
    return (-count.log() - logprobs.masked_fill(~targets, 0.0).sum(-1) / count).mean()
