"""A published version that is a LoRA adapter alone: what peft makes of it, of whole and of sharded models."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from training_lives import forked
from transformers import AutoModelForImageTextToText

from dart_agent.models.model_directory import ADAPTER_WEIGHTS, adapter_base
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.utils.processes import free_port
from dart_train.core.fingerprint import read_fingerprint
from dart_train.core.train_errors import TrainingError
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.fleet.weight_files import launched, why_unusable
from dart_train.trainer.weights.adapters import LoraSettings, add_adapter, merged_weights
from dart_train.trainer.weights.checkpoint import contained_lease, write_adapter
from dart_train.trainer.weights.model_loading import load_model
from dart_train.trainer.weights.snapshot import adapter_snapshot

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")


def learned(directory: Path, lora: LoraSettings = LoraSettings(r=4)) -> torch.nn.Module:
    """A model with an adapter that changes something."""
    model = add_adapter(load_model(directory), lora)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.2, generator=generator)
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, tmp_path_factory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("base"), config=TinyModelConfig(family=request.param))


def test_it_is_what_the_trainer_would_have_merged(base, tmp_path):
    model = learned(base)
    version = write_adapter(adapter_snapshot(model, base), tmp_path / "v1", base, lease=7, step=2)
    read = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), version).merge_and_unload()
    expected = merged_weights(model)
    assert expected is not None
    for name, tensor in read.state_dict().items():
        assert torch.allclose(tensor, expected[name], atol=1e-6), name
    assert contained_lease(version) == 7 and read_fingerprint(version) is not None and not why_unusable(version)


def test_it_holds_the_adapter_and_no_weights(base, tmp_path):
    version = write_adapter(adapter_snapshot(learned(base), base), tmp_path / "v1", base)
    assert [path.name for path in version.glob("*.safetensors")] == [ADAPTER_WEIGHTS]
    assert (version / "tokenizer.json").is_file() and json.loads((version / "config.json").read_text())["model_type"]


def test_a_server_is_started_with_the_weights_under_it(base, tmp_path):
    version = write_adapter(adapter_snapshot(learned(base), base), tmp_path / "v1", base)
    assert adapter_base(version) == str(base) and adapter_base(base) is None
    assert launched(Weights(str(version), 5), -1) == Weights(str(base), -1)
    assert launched(Weights(str(base), 1), -1) == Weights(str(base), 1)


def test_what_is_not_finite_is_not_written(base, tmp_path):
    model = learned(base)
    with torch.no_grad():
        next(parameter for name, parameter in model.named_parameters() if ".lora_B." in name)[0, 0] = torch.nan
    with pytest.raises(TrainingError, match="is not finite"):
        write_adapter(adapter_snapshot(model, base), tmp_path / "v1", base)
    assert not (tmp_path / "v1").exists()


def test_an_adapter_of_the_tower_is_refused(tmp_path):
    base = build_tiny_model(tmp_path / "base")
    model = learned(base, LoraSettings(r=2, target_modules=["qkv", "q_proj"]))
    with pytest.raises(TrainingError, match="the language model alone.*lora_target_modules"):
        adapter_snapshot(model, base)


def publish_from_rank(rank: int, port: int, base: str, root: str) -> None:
    """One of two ranks that hold parts of the model under the adapter, and of the adapter."""
    os.environ |= {"LOCAL_WORLD_SIZE": "2"}
    import torch.distributed as dist

    from dart_train.trainer.weights.model_loading import trainable
    from dart_train.trainer.weights.ranks import Ranks
    from dart_train.trainer.weights.sharding import Cut, load_sharded

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    ranks, lora = Ranks.current(), LoraSettings(r=4)
    prepare = partial(trainable, freeze_vision=False, lora=lora)
    model = load_sharded(base, Cut(torch.device("cpu"), ranks), prepare, lora=lora)
    begun_with(model, 0.01)
    taken = adapter_snapshot(model, base, ranks)
    assert bool(taken.weights) == ranks.is_main
    if ranks.is_main:
        write_adapter(taken, Path(root) / "together", base)
    dist.destroy_process_group()


def begun_with(model: torch.nn.Module, value: float) -> None:
    """Let all of B have one value: that of a rank's part is that of the whole."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(value)


@pytest.mark.scale
@pytest.mark.process
def test_two_ranks_publish_what_one_does(tmp_path):
    base = build_tiny_model(tmp_path / "base")
    context, port = forked(), free_port()
    ranks = [
        context.Process(target=publish_from_rank, args=(rank, port, str(base), str(tmp_path)), daemon=True)
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    alone = add_adapter(load_model(base), LoraSettings(r=4))
    begun_with(alone, 0.01)
    write_adapter(adapter_snapshot(alone, base), tmp_path / "alone", base)
    written = [(tmp_path / which / ADAPTER_WEIGHTS).read_bytes() for which in ("alone", "together")]
    assert written[0] == written[1]
