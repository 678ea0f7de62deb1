"""Every wrong setting is refused with the name of the field and the next step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dart_train.trainer.losses import ObjectiveConfig
from dart_train.trainer.settings.grpo_config import DartGRPOConfig
from dart_train.trainer.settings.grpo_settings import OWN_HINTS

pytestmark = pytest.mark.train


def test_defaults_are_those_of_the_paper(tmp_path):
    config = DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (config.epsilon, config.epsilon_high, config.beta, config.tis_clip_max) == (0.2, 0.28, 0.1, 1.0)
    assert (config.learning_rate, config.groups_per_step, config.top_entropy_quantile) == (1e-6, 8, 0.8)
    assert config.bf16 is False


def test_every_field_has_a_help_text():
    fields = {field.name: field for field in dataclasses.fields(DartGRPOConfig)}
    for name in OWN_HINTS:
        assert fields[name].metadata["help"].endswith("."), name


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss_type": "grp"}, "loss_type: unknown loss 'grp'; did you mean 'grpo'?"),
        ({"scale_rewards": "all"}, "'group', 'batch', 'none'"),
        ({"old_logprobs": "fresh"}, "'current', 'recompute', 'behaviour'"),
        ({"epsilon": 1.5}, "epsilon=1.5 is out of range"),
        ({"top_entropy_quantile": 0.0}, "top_entropy_quantile=0.0 is out of range"),
        ({"tis_clip_max": 0.0}, "tis_clip_max=0.0"),
        ({"groups_per_step": 0}, "groups_per_step=0"),
        ({"keep_published": 1}, "keep_published=1"),
        ({"save_total_limit": 1}, "save_total_limit=1"),
        ({"max_steps": -1}, "max_steps=-1"),
        ({"delta": 1.1}, "delta=1.1 must be above 1 + epsilon_high"),
        ({"loss_type": "cispo"}, "epsilon_high=0.28 is the largest weight of loss_type='cispo'"),
        ({"tis_clip_min": 2.0}, "tis_clip_min=2.0 needs a tis_clip_max that is not below it"),
        ({"tis_clip_min": 0.5, "tis_clip_max": None}, "found None"),
        ({"tis_mode": "icepop"}, "'token_truncate', 'token_mask'"),
        ({"kl_estimator": "k4"}, "'k1', 'k2', 'k3'"),
        ({"entropy_mask_level": "word"}, "'step', 'token'"),
        ({"geometric_clip_max": 0.9}, "geometric_clip_max=0.9 is out of range"),
        ({"num_iterations": 2}, "old_logprobs='recompute'"),
        ({"min_groups_per_step": 9}, "min_groups_per_step=9 is above groups_per_step=8"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers 0"),
        ({"eval_strategy": "steps", "eval_steps": 5}, "dart-agent eval"),
    ],
)
def test_wrong_settings_are_explained(tmp_path, values, words):
    with pytest.raises(ValueError) as raised:
        DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, **values)
    assert words in str(raised.value)


def test_a_reference_needs_no_second_switch(tmp_path):
    DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, beta=0.0, delta=None, tis_clip_max=None)
    DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, num_iterations=2, old_logprobs="behaviour")


def test_the_objective_has_no_correction_where_pi_old_is_mu(tmp_path):
    own = {"output_dir": str(tmp_path), "use_cpu": True}
    assert DartGRPOConfig(**own).objective() == ObjectiveConfig()
    assert DartGRPOConfig(**own, old_logprobs="behaviour").objective().tis_clip_max is None
    assert DartGRPOConfig(**own, geometric_clip_max=1.1).objective().geometric_clip == (None, 1.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "fsdp shards a model among ranks, and this is one process: torchrun"),
        ({"version": 1}, "fsdp_version=1 is not supported, only 2: FSDP1 flattens"),
        ({"state_dict_type": "FULL_STATE_DICT"}, "only 'SHARDED_STATE_DICT': whole, a state would be in one rank's"),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 9}, "the vision tower is not"),
        ({"transformer_layer_cls_to_wrap": ["Qwen2_5_VLVisionBlock"]}, "the layers of the language model are found"),
        ({"cpu_offload": True}, "the vision tower stays on the device"),
        ({"cpu_ram_efficient_loading": True}, "every rank reads its own part"),
        ({"activation_checkpointing": True}, "set gradient_checkpointing beside fsdp_config"),
    ],
)
def test_ways_to_shard_that_are_not_carried_are_refused(settings, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, fsdp=True, fsdp_config=settings)


def test_rows_are_divided_among_ranks_that_shard_the_model(tmp_path):
    with pytest.raises(ValueError, match="context_parallel 2 divides rows among ranks .*: set fsdp: true, or leave"):
        DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, context_parallel=2)
    with pytest.raises(ValueError, match="context_parallel=0 is out of range; choose a value in"):
        DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, context_parallel=0)


def test_groups_that_share_rows_are_equally_large(tmp_path):
    planned: Any = type("SixRanks", (DartGRPOConfig,), {"world_size": 6})
    given = {"output_dir": str(tmp_path), "use_cpu": True, "fsdp": True}
    with pytest.raises(ValueError, match="context_parallel=4 does not divide the 6 ranks: set it to a divisor"):
        planned(**given, context_parallel=4)
    assert planned(**given, context_parallel=3).context_parallel == 3


def test_deepspeed_is_no_second_way_to_shard(tmp_path):
    with pytest.raises(ValueError, match="deepspeed is not carried: fsdp: true divides weights, gradients and moments"):
        DartGRPOConfig(output_dir=str(tmp_path), use_cpu=True, deepspeed={"zero_optimization": {"stage": 2}})


def test_whose_quantile_is_a_choice_of_two(tmp_path):
    assert DartGRPOConfig(output_dir=str(tmp_path)).entropy_mask_scope == "group"
    assert DartGRPOConfig(output_dir=str(tmp_path), entropy_mask_scope="batch").entropy_mask_scope == "batch"
    with pytest.raises(ValueError, match="entropy_mask_scope"):
        DartGRPOConfig(output_dir=str(tmp_path), entropy_mask_scope="task")
