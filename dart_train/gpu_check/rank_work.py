"""What one rank of a check does: `torchrun --module dart_train.gpu_check.rank_work WORK SETTING OUTPUT`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dart_agent.models.families.family_table import model_config
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.utils.processes import end_with_parent
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.rank_checks import largest_group
from dart_train.gpu_check.text_batch import text_batch
from dart_train.trainer.attention.context_group import ContextGroup
from dart_train.trainer.policy_logprobs import Policy
from dart_train.trainer.step_cost import synchronize
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.ranks import Ranks, local_part
from dart_train.trainer.weights.sharding import Cut, load_sharded

BROADCAST_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}
BUCKET_BYTES = 64 << 20
TOKENS = {"cuda": 1024, "cpu": 192}


def _device(setting: CheckSetting) -> torch.device:
    """This rank's device, of which the process group is told."""
    if not setting.on_gpu:
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def fsdp(setting: CheckSetting, device: torch.device) -> dict[str, Any]:
    """Loss and gradient norm of the sharded model, and of the whole model on the first rank."""
    return _beside_whole(setting, device, None)


def context(setting: CheckSetting, device: torch.device) -> dict[str, Any]:
    """The same where the ranks of a group, the largest that the model's heads allow, hold slices of the row."""
    own, _ = Ranks.current().in_groups(largest_group(model_config(setting.model_dir), setting.devices))
    assert own.group is not None
    return _beside_whole(setting, device, ContextGroup(own.rank, own.count, own.group))


def _beside_whole(setting: CheckSetting, device: torch.device, group: ContextGroup | None) -> dict[str, Any]:
    half = torch.bfloat16 if setting.on_gpu else None
    ranks = Ranks.current()
    sharded = load_sharded(setting.model_dir, Cut(device, ranks, half)).train()
    sharded.model.visual.requires_grad_(False)
    loss, norm, seconds = _loss_and_norm(sharded, setting, device, group, sharded=True)
    values = {"loss": loss, "norm": norm, "seconds": seconds}
    del sharded
    if ranks.is_main:
        whole = load_model(setting.model_dir).to(device).train()
        whole.model.visual.requires_grad_(False)
        whole_loss, whole_norm, _ = _loss_and_norm(whole, setting, device, None, sharded=False)
        values |= {"whole_loss": whole_loss, "whole_norm": whole_norm}
    ranks.wait()
    return values


def _loss_and_norm(
    model: Any, setting: CheckSetting, device: torch.device, group: ContextGroup | None, *, sharded: bool
) -> tuple[float, float, float]:
    """One forward and backward pass over the same row on every rank, or on every group of ranks."""
    tokens = ModelTokens.load(setting.model_dir)
    place, count = (0, 1) if group is None else (group.place, group.count)
    micro = text_batch(setting.model_dir, tokens, length=TOKENS[setting.device], context=(place, count)).to(device)

    def autocast() -> Any:
        return torch.autocast("cuda", dtype=torch.bfloat16) if setting.on_gpu else nullcontext()

    policy = Policy(model, tokens.suppressed_ids, autocast=autocast, features_mb=0, context=group)
    synchronize(device)
    started = time.perf_counter()
    logprobs, _ = policy(micro, None)
    loss = -logprobs[micro.mask].mean()
    (count * loss).backward()  # gradients are averaged over all ranks, and those of a group are parts of one
    synchronize(device)
    seconds = time.perf_counter() - started
    squares = torch.zeros((), device=device)
    for parameter in model.parameters():
        if parameter.grad is not None:
            squares += local_part(parameter.grad).float().square().sum()
    if sharded:
        dist.all_reduce(squares)
    return float(loss.detach()), float(squares.sqrt()), seconds


def broadcast(setting: CheckSetting, device: torch.device) -> dict[str, Any]:
    """Seconds of a warm broadcast in buckets, and whether every rank received the first rank's numbers."""
    count = BROADCAST_BYTES[setting.device] // BUCKET_BYTES
    expected = torch.arange(BUCKET_BYTES // 2, device=device).remainder(251).to(torch.bfloat16)
    bucket = expected.clone() if Ranks.current().is_main else torch.zeros_like(expected)
    dist.broadcast(bucket, 0)  # connects the ranks
    same = torch.equal(bucket, expected)
    synchronize(device)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        dist.broadcast(bucket, 0)
    synchronize(device)
    dist.barrier()
    seconds = time.perf_counter() - started
    agreed = torch.tensor([int(same and torch.equal(bucket, expected))], device=device)
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
    return {"bytes": count * BUCKET_BYTES, "seconds": seconds, "same": bool(agreed.item())}


WORK: dict[str, Callable[[CheckSetting, torch.device], dict[str, Any]]] = {
    "fsdp": fsdp,
    "context": context,
    "broadcast": broadcast,
}


def main() -> None:
    """Do the named work; the first rank writes the result."""
    end_with_parent()  # torchrun starts ranks in sessions of their own, which a killed check would leave behind
    work, setting_text, output = sys.argv[1:4]
    setting = CheckSetting.read(json.loads(setting_text))
    device = _device(setting)
    try:
        values = WORK[work](setting, device)
        if Ranks.current().is_main:
            Path(output).write_text(json.dumps(values))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
