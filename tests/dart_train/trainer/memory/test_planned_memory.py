"""What is planned of a rank's memory is what its tensors take, for every family and each setting that moves memory.

The results of all operations are counted while they are alive, so that libraries, threads and the other processes of a
busy machine do not count. On a CPU, what goes to the host's memory stays in the one that is measured: there plans of
the device and of the host are compared together.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from training_lives import forked
from transformers import modeling_utils

from dart_agent.models.families.family_table import FAMILIES
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.utils.processes import free_port
from dart_train.gpu_check.text_batch import text_batch
from dart_train.trainer import policy_logprobs
from dart_train.trainer.attention.context_group import ContextGroup
from dart_train.trainer.attention.model_attention import take_over
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch
from dart_train.trainer.batches.samples import Sample
from dart_train.trainer.memory import rank_memory as plans
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.offload import HostMoments
from dart_train.trainer.memory.rank_memory import RankMemory, Setting, Work, rank_memory
from dart_train.trainer.memory.saved_tensors import edge_bytes, layer_bytes, patch_bytes
from dart_train.trainer.policy_logprobs import Policy, response_logprobs
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter
from dart_train.trainer.weights.model_loading import load_model
from tests.helpers.parameters import slow_but

pytestmark = [pytest.mark.scale, pytest.mark.train, pytest.mark.timeout(400)]

TOKENS, RESPONSES = 768, 128
SCREEN = (224, 224)
LORA_RANK = 8
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing": {"checkpointing": True},
    "chunked head": {"checkpointing": True},
    "offloaded activations": {"checkpointing": True, "offload_activations": True},
    "offloaded optimizer": {"checkpointing": True, "offload_optimizer": True},
    "adapter": {"lora_rank": LORA_RANK, "trains_tower": False},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if "moe" in name or name == "qwen2_vl" else [])
        for name in sorted(FAMILIES)
    ],
)
def model_dir(request, tmp_path_factory) -> Path:
    """A model of each family whose layers keep more than its weights take."""
    config = TinyModelConfig(
        family=request.param, hidden_size=128, layers=6, heads=4, intermediate_size=384, vision_hidden_size=64,
        vision_layers=4, vision_intermediate_size=192, numbers=4000,
    )  # fmt: skip
    return build_tiny_model(tmp_path_factory.mktemp(request.param), config=config)


def micro_batch(model_dir: Path, context: tuple[int, int] = (0, 1)) -> tuple[MicroBatch, int]:
    """Return a row with one screenshot, or a rank's slice of it, and the number of the screenshot's patches."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)
    screen = np.random.default_rng(0).integers(0, 256, (*SCREEN, 3), dtype=np.uint8)
    pads = vision.num_tokens(screen)
    shown = [tokens.vision_start_id, *[tokens.image_pad_id] * pads, tokens.vision_end_id]
    text = tokens.encode("a" * (TOKENS - RESPONSES - len(shown)))
    responses = tokens.encode("b" * RESPONSES)
    sample = Sample((*text, *shown), ("screen",), tuple(responses), (-1.0,) * RESPONSES)
    collator = Collator(tokens, vision, ImageCache(lambda name: screen), max_length=None, context=context)
    (micro,) = collator.micro_batches([sample], TOKENS)
    return micro, pads * 4


class _Saved:
    """Bytes that modules save for the backward pass, each storage once, without weights and copies of them."""

    def __init__(self, model: Any, modules: dict[str, Any]) -> None:
        self.bytes: dict[str, int] = defaultdict(int)
        self._seen = {item.untyped_storage().data_ptr() for item in model.parameters()}
        sides = [tuple(item.shape) for item in model.parameters()]
        self._weights = {*sides, *(shape[::-1] for shape in sides)}
        self._held: list[torch.Tensor] = []  # so that no address is used twice
        self._now = "outside"
        for name, module in modules.items():
            module.register_forward_pre_hook(lambda *_, name=name: setattr(self, "_now", name))
            module.register_forward_hook(lambda *_: setattr(self, "_now", "outside"))

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen and tuple(tensor.shape) not in self._weights:
            self._seen.add(storage.data_ptr())
            self._held.append(tensor)
            self.bytes[self._now] += storage.nbytes()
        return tensor

    def during(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return a context in which what is saved counts."""
        return torch.autograd.graph.saved_tensors_hooks(self, lambda tensor: tensor)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_layers_save_the_tensors_that_the_formulas_add_up(half, model_dir):
    model, size, tokens = load_model(model_dir).train(), ModelSize.of_directory(model_dir), ModelTokens.load(model_dir)
    batch = text_batch(model_dir, tokens, length=TOKENS)
    layers = {str(number): layer for number, layer in enumerate(model.model.language_model.layers)}
    saved = _Saved(model, layers)
    with saved.during(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        response_logprobs(model, batch, tokens.suppressed_ids)
    attending, recurrent = layer_bytes(size, half=half)
    inner = 2 * size.routed * (2 * size.hidden + 4 * size.expert // max(3 * size.hidden, 1))
    for number, layer in layers.items():
        expected = recurrent if hasattr(layer, "linear_attn") else attending
        if half and size.experts:  # a CPU's routed experts compute in their weights' type, which is float32 here
            expected += inner
        # Left out: one number for each head, position or expert; the first layer holds the positions of all.
        assert expected / (saved.bytes[number] / batch.input_ids.numel()) == pytest.approx(
            1.0, abs=0.06 if number in "01" else 0.03
        )


def test_the_tower_saves_the_tensors_that_the_formulas_add_up(model_dir):
    model, size = load_model(model_dir).train(), ModelSize.of_directory(model_dir)
    take_over(model)
    side, vision = 24, model.config.vision_config
    pixels = torch.randn(side**2, 3 * vision.temporal_patch_size * vision.patch_size**2)
    saved = _Saved(model, {})
    with saved.during():
        model.model.get_image_features(pixels, torch.tensor([[1, side, side]]), return_dict=True, kernel="sdpa")
    planned = size.depth * patch_bytes(size, half=False) + edge_bytes(size, half=False)
    assert planned / (saved.bytes["outside"] / side**2) == pytest.approx(1.0, abs=0.03)


class _Allocated(TorchDispatchMode):
    """The most bytes that the results of all operations hold at a time.

    Args:
        known: tensors that are left out.
        resized: whether storages that are there already may grow, which no operation says.
    """

    def __init__(self, known: Iterable[torch.Tensor], *, resized: bool) -> None:
        super().__init__()
        self._known = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in known}
        self._made: dict[int, StorageWeakRef] = {}
        self._resized = resized
        self._at_most = 0  # what is alive, and what has ended since it was counted: counting takes a millisecond
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if not isinstance(one, torch.Tensor):
                continue
            ref = StorageWeakRef(storage := one.untyped_storage())
            if ref.cdata not in self._known and ref.cdata not in self._made:
                self._made[ref.cdata] = ref
                self._at_most += storage.nbytes()
        if self._resized or self._at_most > self.most:
            self._count()
        return found

    def _count(self) -> None:
        alive = ((key, torch.UntypedStorage._new_with_weak_ptr(ref.cdata)) for key, ref in self._made.items())
        sizes = {key: storage.nbytes() for key, storage in alive if storage is not None}
        self._made = {key: self._made[key] for key in sizes}
        self._at_most = sum(sizes.values())
        self.most = max(self.most, self._at_most)


def _loss(policy: Policy, micro: MicroBatch) -> torch.Tensor:
    """Return a loss; the entropies and their graph end here, as in the trainer."""
    logprobs, _ = policy(micro, None)
    return -logprobs[micro.mask].mean()


def taken(model_dir: Path, setting: Setting, group: ContextGroup | None = None) -> tuple[int, RankMemory]:
    """Train two steps; return the most bytes of all tensors, and what is planned."""
    context = (0, 1) if group is None else (group.place, group.count)
    size, (micro, patches) = ModelSize.of_directory(model_dir), micro_batch(model_dir, context)
    model = load_model(model_dir)
    if setting.lora_rank:
        model = add_adapter(model, LoraSettings(r=setting.lora_rank))
    if setting.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if setting.offload_activations:
        model.activation_checkpointing_enable(offload=True)
    policy = Policy(model.train(), ModelTokens.load(model_dir).suppressed_ids, features_mb=0, context=group)
    optimizer = torch.optim.AdamW([item for item in model.parameters() if item.requires_grad], lr=1e-6)
    if setting.offload_optimizer:
        HostMoments(optimizer)
    own = {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in model.parameters()}
    with _Allocated(model.parameters(), resized=setting.offload_optimizer) as allocated:
        for _ in range(2):  # the second pass has gradients and moments beside it
            _loss(policy, micro).backward()
            optimizer.step()
    work = Work(micro.input_ids.numel(), micro.num_tokens, len(micro.image_hashes), patches, recurring=False)
    return sum(own.values()) + allocated.most, rank_memory(size, setting, work)


@pytest.mark.parametrize("name", SWITCHES)
def test_what_is_planned_is_what_is_taken(name, model_dir, monkeypatch):
    if name == "chunked head":  # a tenth of the logits at a time
        at_once = RESPONSES * ModelSize.of_directory(model_dir).vocabulary // 10
        for module in (policy_logprobs, plans):
            monkeypatch.setattr(module, "LOGITS_AT_ONCE", at_once)
    if name == "offloaded activations":  # a CPU cannot pin memory

        class Elsewhere(torch.autograd.graph.save_on_cpu):
            def __init__(self, pin_memory: bool, device_type: str) -> None:
                super().__init__(pin_memory=False, device_type=device_type)

        monkeypatch.setattr(modeling_utils, "save_on_cpu", Elsewhere)
    measured, planned = taken(model_dir, Setting(**SWITCHES[name]))
    expected = planned.peak + planned.moments_on_host + planned.activations_on_host
    assert 0.85 <= expected / measured <= 1.15, f"planned {expected}, measured {measured}: {planned.causes}"


def _taken_by_a_rank(rank: int, port: int, model_dir: Path, out: Path) -> None:
    """Write the measured and the planned bytes of one of two ranks that share a row, for each setting."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    group, found = ContextGroup(rank, 2, dist.group.WORLD), {}
    for name in ("plain", "checkpointing"):
        measured, planned = taken(model_dir, Setting(**SWITCHES[name]), group)
        found[name] = [measured, planned.peak, dict(planned.causes)]
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "model_dir",
    slow_but(["qwen3_5"], sorted(FAMILIES)),
    indirect=True,
)
def test_what_is_planned_of_ranks_that_share_a_row_is_what_they_take(model_dir, tmp_path):
    """One has the screenshot and the beginning, the other one most of the responses."""
    context, port = forked(), free_port()
    ranks = [context.Process(target=_taken_by_a_rank, args=(rank, port, model_dir, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    for rank in range(2):
        for name, (measured, planned, causes) in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            assert 0.85 <= planned / measured <= 1.15, f"{name} {rank}: {planned}, measured {measured}: {causes}"
