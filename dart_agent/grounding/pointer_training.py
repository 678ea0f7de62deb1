"""Training of a pointer model on screenshots, descriptions and boxes, after GUI-Actor's recipe.

First the head and the embeddings of the pointer's own tokens with the backbone frozen (published: learning rate 1e-4),
then everything (5e-6). The loss is the head's alone; the model's text is not trained.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dart_agent.grounding.attention_regions import patch_mask
from dart_agent.grounding.candidate import Query
from dart_agent.grounding.pointer_model import PointerModel
from dart_agent.grounding.screenspot import GroundingItem
from dart_agent.models.pointer_head import pointer_loss
from dart_gym.core.errors import ConfigurationError

WARMUP_STEPS = 20


def train_pointer(
    model: PointerModel,
    items: Sequence[GroundingItem],
    *,
    steps: int,
    batch_size: int = 8,
    learning_rate: float = 1e-4,
    whole: bool = False,
    seed: int = 0,
    on_step: Callable[[int, float], bool | None] = lambda step, loss: False,
) -> None:
    """Train in place with AdamW; `whole`: not the head alone; `on_step`: gets steps and loss, True ends training.

    Raises:
        ConfigurationError: if there are fewer items than a batch, the boxes of an item lie on no patch, or a loss
            is not finite.
    """
    if len(items) < batch_size:
        raise ConfigurationError(f"{len(items)} items do not fill a batch of {batch_size}")
    model.backbone.requires_grad_(whole)
    own = model.backbone.get_input_embeddings().weight.requires_grad_()
    rows_trained = torch.full((len(own), 1), float(whole), device=own.device)
    rows_trained[model.pointer_ids] = 1.0
    hook = own.register_hook(lambda gradient: gradient * rows_trained.to(gradient))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, learning_rate, weight_decay=0.0)  # none: it would move frozen rows
    rising = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP_STEPS))
    model.train()
    try:
        for step, rows in enumerate(_batches(len(items), batch_size, steps, seed), 1):
            loss = batch_loss(model, [items[row] for row in rows])
            if not math.isfinite(value := float(loss.detach())):
                raise ConfigurationError(f"the loss of step {step} is not finite: lower the learning rate")
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            rising.step()
            if on_step(step, value):
                break
    finally:
        model.requires_grad_(True).eval()
        hook.remove()


def _batches(count: int, size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Full batches of rows in a new order every epoch."""
    order = torch.Generator().manual_seed(seed)
    epochs = (torch.randperm(count, generator=order)[: count // size * size].split(size) for _ in itertools.count())
    return (rows.tolist() for rows in itertools.islice(itertools.chain.from_iterable(epochs), steps))


def batch_loss(model: PointerModel, items: Sequence[GroundingItem]) -> Tensor:
    """Return the head's loss on some items.

    Raises:
        ConfigurationError: if the boxes of an item lie on no patch.
    """
    queries = [Query(item.description, item.screenshot()) for item in items]
    logprobs, grids = model(queries)
    masks = []
    for item, query, grid in zip(items, queries, grids, strict=True):
        height, width = query.screenshot.shape[:2]
        masks.append(torch.from_numpy(patch_mask(item.boxes, (width, height), grid)).flatten())
        if not masks[-1].any():
            raise ConfigurationError(f"{item.name}: none of its boxes has an area on the screen")
    return pointer_loss(logprobs, pad_sequence(masks, True).to(logprobs.device))
