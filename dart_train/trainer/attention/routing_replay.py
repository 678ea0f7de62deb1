"""Routers of a mixture of experts that choose as the engine's did, where it sampled what is trained (R3).

Engine and trainer round differently, and where two experts are almost equally likely their routers part: the token is
then computed by other weights, and its log-probability says nothing of the update. With recorded experts the trainer
takes the engine's choice at each place that a trained token was sampled from. How much each chosen expert counts is the
trainer's own router's, so that routers are trained too. Prompts are routed by the trainer's own routers.

Invariants:
    - A pass without recorded experts, or of another library, is the model's own.
    - What activation checkpointing computes again is routed as the first time: the choice comes with the arguments of
      each layer, not from a state around the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from dart_train.core.train_errors import TrainingError


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded experts of some places of a pass, each place once.

    Attributes:
        places: (P,) in the flattened tokens.
        chosen: (P, layers, k).
    """

    places: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, text_model: Any, predict_index: Tensor, recorded: Tensor) -> Replay | None:
        """Take the recorded experts (M, layers * k) of the places (M,); None where none are known.

        Branches share the place that their first tokens are sampled from: there the first branch's experts count.

        Raises:
            TrainingError: if they are not experts of this model.
        """
        config = text_model.config
        layers, k = len(text_model.layers), config.num_experts_per_tok
        if not len(recorded):
            return None
        if recorded.shape[1] != layers * k or int(recorded.max()) >= config.num_experts:
            raise TrainingError(
                f"recorded experts, {recorded.shape[1]} a token up to number {int(recorded.max())}, are not those of a "
                f"model with {layers} layers of {config.num_experts}, {k} of which compute a token: the rollouts are "
                "another model's"
            )
        known = recorded[:, 0] >= 0
        places, chosen = predict_index[known], recorded[known]
        if not len(places):
            return None
        order = torch.sort(places, stable=True)
        first = torch.ones_like(order.values, dtype=torch.bool)
        first[1:] = order.values[1:] != order.values[:-1]
        return cls(order.values[first], chosen[order.indices[first]].view(-1, layers, k))


def experts_of_a_token(config: Any) -> int:
    """Experts that compute a token of a text model in all layers together; 0 where it is no mixture."""
    return config.num_hidden_layers * getattr(config, "num_experts_per_tok", 0)


def take_over_routers(text_model: Any) -> None:
    """Let the routers of a text model choose as a pass tells them to, where it does. Idempotent."""
    for number, layer in enumerate(text_model.layers):
        if hasattr(layer.mlp, "experts") and "forward" not in vars(layer.mlp.gate):
            layer.mlp.gate.forward = MethodType(_route, layer.mlp.gate)
            layer.register_forward_pre_hook(_Tell(number), with_kwargs=True)


@dataclass(frozen=True, slots=True)
class _Tell:
    """Hands what a pass recorded for one layer to its router."""

    number: int

    def __call__(self, layer: Any, given: Any, named: dict[str, Any]) -> None:
        replay = getattr(named.get("segments"), "replay", None)
        layer.mlp.gate.replayed = None if replay is None else (replay.places, replay.chosen[:, self.number])


def _route(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`Qwen3VLMoeTextTopKRouter.forward`, with recorded experts where there are any."""
    logits, weights, experts = type(self).forward(self, hidden_states)
    if getattr(self, "replayed", None) is None:
        return logits, weights, experts
    places, chosen = self.replayed
    taken = logits[places].softmax(-1, dtype=torch.float32).gather(-1, chosen)
    taken = taken / taken.sum(-1, keepdim=True)
    return logits, weights.index_copy(0, places, taken.to(weights.dtype)), experts.index_copy(0, places, chosen)
