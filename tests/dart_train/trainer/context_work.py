"""What the ranks of a context group compute, beside one rank that has whole rows: run in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training_lives import forked

from dart_gym.utils.processes import free_port

if TYPE_CHECKING:
    from family_models import Family
    from torch import Tensor

    from dart_train.trainer.attention.context_group import ContextGroup
    from dart_train.trainer.batches.samples import Sample

Families = dict[str, tuple[dict[str, Any], dict[str, Any]]]
"""By a name that begins with the family's: options of the tiny model, and of text layers that replace its own."""
Answers = tuple["list[Tensor]", "dict[str, Tensor]", dict[str, int]]
"""Values of each micro-batch, gradients by the parameter's name, and sizes."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {"pack_rows": True},
    "filled up": {"share_prompts": False},
    "steps alone": {"share_prompts": False, "merge_prefixes": False, "pack_rows": True},
}
"""Packed rows with branches; rows filled up to the longest; a row for each step."""
MAX_TOKENS = 401
BY_BLOCKS = ("qwen2_5_vl", "qwen3_vl")
"""Families of which a forward pass with FlexAttention is compared, too."""


def compare(directory: Path, families: Families, ranks: int = 2) -> dict[str, dict[str, float]]:
    """Run every family in `ranks` processes; return the largest differences from one rank by "family layout"."""
    context = forked()
    port = free_port()
    processes = [context.Process(target=_work, args=(rank, ranks, port, directory, families)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    found: dict[str, dict[str, float]] = json.loads((directory / "found.json").read_text())
    return found


def _work(rank: int, ranks: int, port: int, directory: Path, families: Families) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    from family_models import Family

    from dart_train.trainer.attention.context_group import ContextGroup

    own = directory / str(rank)
    models = {name: Family(name.split()[0], own / name, **given[0]) for name, given in families.items()}
    # Afterwards: transformers writes models on the first rank alone.
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    group = ContextGroup(rank, ranks, dist.group.WORLD)
    found: dict[str, dict[str, float]] = {}
    for name, family in models.items():
        if families[name][1]:
            family.rebuild(**families[name][1])
        found |= dict(_compared(name, family, group))
    if rank == 0:
        (directory / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _compared(name: str, family: Family, group: ContextGroup) -> Iterator[tuple[str, dict[str, float]]]:
    """Differences of one family in every layout, with checkpointed layers and without, with kept features and none."""
    family.model.train()
    for number, (layout, given) in enumerate(LAYOUTS.items()):
        if number == 1:
            family.model.gradient_checkpointing_enable()
        alone = _answers(family, given, None, keeps=number == 0)
        together = _answers(family, given, group, keeps=number == 0)
        yield f"{name} {layout}", _differences(alone, together)
    if name in BY_BLOCKS:
        yield f"{name} by blocks", {"values": _by_blocks(family, group)}


def _by_blocks(family: Family, group: ContextGroup) -> float:
    """Largest difference of values from one rank with FlexAttention, which on a CPU has forward passes alone."""
    import torch

    from dart_train.trainer.policy_logprobs import response_logprobs

    found: list[Tensor] = []
    for one in (None, group):
        context = (0, 1) if one is None else (one.place, one.count)
        (batch, *_) = family.collator(context=context).micro_batches(family.samples(), MAX_TOKENS)
        with torch.no_grad():
            values = response_logprobs(
                family.model, batch, family.tokens.suppressed_ids, kernel="flex_attention", context=one
            )
        found.append(torch.stack(values))
    return float((found[0] - found[1]).abs().max())


def _answers(family: Family, given: dict[str, Any], group: ContextGroup | None, *, keeps: bool) -> Answers:
    """Log-probabilities and entropies of all micro-batches, the gradient of a loss, and facts about the slices."""
    import torch
    import torch.distributed as dist

    from dart_train.trainer.attention.routing_replay import experts_of_a_token
    from dart_train.trainer.image_features import ImageFeatures
    from dart_train.trainer.policy_logprobs import response_logprobs, tower_features

    model = family.model
    model.zero_grad()
    context = (0, 1) if group is None else (group.place, group.count)
    width = experts_of_a_token(model.config.text_config)
    plain = enumerate(family.samples())
    samples = [replace(sample, routing=_routing(family, sample, number)) for number, sample in plain]
    collator = family.collator(context=context, routing_width=width, **given)
    batches = collator.micro_batches(samples, MAX_TOKENS)
    features = ImageFeatures(partial(tower_features, model), trainable=True) if keeps else None
    values: list[Tensor] = []
    for batch in batches:
        logprobs, entropies = response_logprobs(
            model, batch, family.tokens.suppressed_ids, features=features, context=group
        )
        weights = torch.linspace(-1.0, 1.0, logprobs.numel()).view_as(logprobs)
        loss = ((weights * logprobs).sum() - entropies.sum()) / 1000
        loss.backward()
        values += [logprobs.detach(), entropies.detach(), loss.detach()]
    if features is not None:
        features.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        if group is not None:
            dist.all_reduce(own)
        gradients[name] = own
    images = sum(len(batch.image_hashes) for batch in batches)
    facts = {"micro_batches": len(batches), "images": images, "tokens": sum(b.input_ids.numel() for b in batches)}
    return values, gradients, facts


def _routing(family: Family, sample: Sample, number: int) -> bytes:
    """Experts that an engine might have taken for every second sample of a mixture; none of the others."""
    import numpy as np

    from dart_agent.engines.base import expert_routing

    text = family.model.config.text_config
    if number % 2 or not getattr(text, "num_experts_per_tok", 0):
        return b""
    shape = (len(sample.response_ids), text.num_hidden_layers)
    drawn = np.random.default_rng(number).random((*shape, text.num_experts))
    return expert_routing.pack(drawn.argsort(-1)[..., : text.num_experts_per_tok])


def _differences(alone: Answers, together: Answers) -> dict[str, float]:
    """Largest differences of values and gradients, and what shows that they say something."""
    import torch

    gradients = alone[1]
    return {
        "values": max(float((left - right).abs().max()) for left, right in zip(alone[0], together[0], strict=True)),
        "gradients": max(float((gradients[name] - together[1][name]).abs().max()) for name in gradients),
        "norm": float(torch.nn.utils.get_total_norm(list(gradients.values()))),
        "untrained": sum(not gradient.any() for gradient in gradients.values()),
        "images": together[2]["images"] / alone[2]["images"],
        "tokens": together[2]["tokens"] / alone[2]["tokens"],
        "micro_batches": alone[2]["micro_batches"],
    }
