"""GUI-Actor's head: the state of one token chooses among the patches of a screenshot. torch alone.

After GUI-Actor (arXiv 2506.03143, section 3): with the patches' embeddings V (M, d) as the language model takes them
in, and the last hidden state h (d) of the token <ACTOR>,

    V' = LayerNorm(V + Dropout(SelfAttention(V)))      k_j = MLP_v(V'_j)      q = MLP_t(h)
    a  = softmax_j(q . k_j / sqrt(d))                  loss = KL(uniform over the target's patches || a)

Invariants:
    - Names of parameters are those of the released checkpoints, which therefore load as they are.
    - It computes in float32, whatever the backbone does: what comes out are log-probabilities.
"""

import torch
from torch import Tensor, nn

DROPOUT = 0.1  # published, as are eight heads


class PointerHead(nn.Module):
    """From patches and a state to log-probabilities; `width` of the hidden states, `inner` of the MLPs."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(width, 8, dropout=DROPOUT, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
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


def pointer_loss(logprobs: Tensor, targets: Tensor) -> Tensor:
    """Mean over rows of KL(uniform || attention) in nats; (B, M) each, `targets` True on one patch a row at least."""
    count = targets.sum(-1)
    return (-count.log() - logprobs.masked_fill(~targets, 0.0).sum(-1) / count).mean()
