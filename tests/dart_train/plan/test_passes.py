"""The passes that a plan lists are those that the trainer takes, with the operations that PyTorch counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_lab.train.made_up_steps import Window, record_steps
from dart_train.config.run_config import RunConfig, load_config, parse_config
from dart_train.plan.run_plan import rank_setting
from dart_train.plan.step_passes import Assumed, passes, rehearsed_steps, row_lengths
from dart_train.trainer.memory.model_size import ModelSize

ROOT = Path(__file__).parents[3]
SHAPE = TinyModelConfig(hidden_size=256, layers=2, intermediate_size=768, vision_hidden_size=128, vision_layers=2)
SIX = Assumed(steps=6, response=16, image_tokens=64, prompt=40)
SEVEN = ModelSize.published("7b")


def a_run(trainer: dict[str, object], **agent: object) -> RunConfig:
    """A run whose lease is one group of two rollouts."""
    small = {"beta": 0.0, "top_entropy_quantile": 1.0, "groups_per_step": 1, "micro_batch_tokens": 512}
    return parse_config({
        "name": "counted",
        "rollout": {"tasks": ["fake/two-steps"], "group_size": 2},
        "agent": {"screenshots": 3, "texts": 4} | agent,
        "trainer": small | trainer,
    })  # fmt: skip


def named(config: RunConfig, size: ModelSize = SEVEN, assumed: Assumed = SIX) -> dict[str, float]:
    return {one.name: one.flops for one in passes(config, size, rank_setting(config, 1), assumed, responses=1)}


def test_steps_whose_prompts_extend_one_another_are_one_row():
    sliding, blocks = a_run({}, block=1), a_run({})
    full = 40 + 3 * 64
    assert blocks.agent.dropped_at_once == 2
    assert row_lengths(sliding, SIX) == [full + 3 * 16, full + 4 * 16, full + 5 * 16, full + 5 * 16]
    assert row_lengths(blocks, SIX) == [full + 3 * 16, full + 5 * 16, 40 + 2 * 64 + 4 * 16]


def test_no_pass_is_planned_that_is_not_needed():
    assert list(named(a_run({"use_peft": True}))) == ["forward", "backward", "vision tower"]
    later = {"mini_batches": 2, "old_logprobs": "recompute"}
    found = named(a_run({"use_peft": True, **later}))
    assert found["scoring: pi_old of later mini-batches"] == found["forward"] / 2
    chosen = named(a_run({"use_peft": True, "top_entropy_quantile": 0.8, **later}))
    assert chosen["scoring: entropies, and pi_old"] == chosen["forward"]
    recorded = {"top_entropy_quantile": 0.8, "recorded_entropies": True}
    assert named(a_run({"use_peft": True, **recorded, **later})) == found
    every = named(a_run({"beta": 0.1}))
    assert every["reference"] == every["forward"] == 4 * named(a_run({"beta": 0.1, "kl_every": 4}))["reference"]
    assert "reference's vision tower" not in named(a_run({"beta": 0.1, "use_peft": True}))


def test_rehearsed_steps_take_what_as_many_steps_of_a_lease_do():
    """A lease of twelve steps: twelve rehearsed ones double what it takes, however they are dealt out."""
    lease = sum(named(a_run({})).values())
    own = {"supervised_coef": 0.5, "self_imitation_rows": 12}
    for rehearsal_steps in (0, 3):
        assert named(a_run({**own, "rehearsal_steps": rehearsal_steps}))["rehearsed steps"] == lease
    twice = named(a_run({**own, "num_iterations": 2, "old_logprobs": "recompute", "rehearsal_steps": 3}))
    assert twice["rehearsed steps"] == pytest.approx(1.25 * lease), "a quarter is beside the lease, and runs twice"
    assert "rehearsed steps" not in named(a_run({**own, "shuffle_rewards": True}))
    assert "rehearsed steps" not in named(a_run({**own, "supervised_coef": 0.0}))


def test_every_kind_of_rehearsed_step_counts():
    changed = ["trainer.self_imitation_rows=0", "trainer.shown_rows=0"]
    config = load_config(ROOT / "configs" / "multiturn.yaml")
    assert rehearsed_steps(config) == 16 + 64 + 192
    assert rehearsed_steps(load_config(ROOT / "configs" / "multiturn.yaml", changed)) == 16
    lessons = ["teacher.kind=dagger", "teacher.rehearsed_rows=32"]
    assert rehearsed_steps(load_config(ROOT / "configs" / "drawn_hard.yaml", lessons)) == 16 + 64 + 32


@pytest.mark.parametrize("name", ["dart_osworld_7b", "lora_7b_80gb"])
def test_a_lease_of_the_shipped_7b_takes_three_quarters_of_what_it_took_at_most(name):
    """Of a scoring pass over everything and a sliding window, in which each step after the first is a row."""
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    before = load_config(ROOT / "configs" / f"{name}.yaml", ["agent.block=1", "trainer.recorded_entropies=false"])
    took = sum(named(before, assumed=Assumed()).values())
    assert sum(named(config, assumed=Assumed()).values()) < 0.75 * took
    passes_alone = load_config(ROOT / "configs" / f"{name}.yaml", ["trainer.recorded_entropies=false"])
    assert sum(named(config, assumed=Assumed()).values()) < sum(named(passes_alone, assumed=Assumed()).values())


@pytest.mark.thorough
@pytest.mark.train
@pytest.mark.parametrize(
    ("trainer", "family"),
    [
        ({"freeze_vision": True}, "qwen2_5_vl"),
        ({"mini_batches": 2, "old_logprobs": "recompute", "beta": 0.1, "gradient_checkpointing": True},
         "qwen2_5_vl"),
        ({"use_peft": True, "lora_r": 4, "beta": 0.1, "top_entropy_quantile": 0.99999, "num_iterations": 2,
         "old_logprobs": "recompute"}, "qwen2_5_vl"),
        ({"freeze_vision": True, "beta": 0.1}, "qwen3_vl_moe"),
        ({"use_peft": True, "lora_r": 4}, "qwen3_vl_moe"),
        ({"supervised_coef": 0.5, "self_imitation_rows": 6, "rehearsal_steps": 2, "beta": 0.1}, "qwen2_5_vl"),
    ],
    ids=["plain", "as the 7B", "adapter", "mixture", "adapter of a mixture", "rehearsal"],
)  # fmt: skip
def test_planned_operations_are_those_that_pytorch_counts(trainer, family, tmp_path):
    """Of a mixture of 16 experts two compute a token, and count."""
    config = a_run(trainer)
    build_tiny_model(tmp_path, config=replace(SHAPE, family=family, experts=16))
    counted, assumed = _count(config, tmp_path)
    size = ModelSize.of_directory(tmp_path)
    planned = sum(one.flops for one in passes(config, size, rank_setting(config, 1), assumed, responses=1))
    assert planned == pytest.approx(counted, rel=0.1)


def _count(config: RunConfig, directory: Path) -> tuple[float, Assumed]:
    """Operations of all optimizer steps on a lease of made-up rollouts, and what they are made of."""
    from dart_agent.episodes.screenshots import image_hash
    from dart_agent.episodes.trajectory import Trajectory
    from dart_gym.core.outcomes import TerminalState
    from dart_train.data.manager.leasing import Group
    from dart_train.trainer.batches.collator import Collator, ImageCache
    from dart_train.trainer.batches.demonstrations import recorded
    from dart_train.trainer.batches.lease_source import Lease
    from dart_train.trainer.grpo_trainer import step_settings
    from dart_train.trainer.memory.step_memory import StepMemory
    from dart_train.trainer.policy_logprobs import Policy, Reference
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig
    from dart_train.trainer.step_runner import StepRunner
    from dart_train.trainer.weights.adapters import LoraSettings
    from dart_train.trainer.weights.model_loading import frozen_copy, load_model, trainable
    from dart_train.trainer.weights.ranks import ALONE
    from tests.helpers.counted_operations import counting

    trainer, device = config.trainer, torch.device("cpu")
    lora = LoraSettings(r=trainer.lora_r) if trainer.use_peft else None
    model = trainable(load_model(directory), freeze_vision=trainer.freeze_vision, lora=lora).train()
    if trainer.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens, vision = ModelTokens.load(directory), VisionSpec.from_dir(directory)
    rng, words = np.random.default_rng(0), tokens.encode("abcdefghijklmnopqrstuvwxyz")
    screens, trajectories = {}, []
    window = Window(config.agent.screenshots, config.agent.dropped_at_once)
    for number in range(config.rollout.group_size):
        own = [rng.integers(0, 256, (224, 224, 3), np.uint8) for _ in range(6)]
        names = [image_hash(screen) for screen in own]
        screens |= dict(zip(names, own, strict=True))
        pads = [vision.num_tokens(screen) for screen in own]
        responses = [[*rng.choice(words, 15).tolist(), tokens.im_end_id] for _ in own]
        steps = record_steps(tokens, f"Click on tab {number}", names, pads, responses, window)
        ended = {"terminal": TerminalState.DONE, "score": number % 2}
        trajectories.append(Trajectory("t", 0, trajectory_id=f"{number}", steps=tuple(steps), **ended))
    first, second = (len(step.prompt_ids) for step in trajectories[0].steps[:2])
    # Layout grows with each turn as well, by much beside so small a screen: it counts as the response's.
    assumed = Assumed(6, response=second - first - pads[0], image_tokens=pads[0], prompt=first - pads[0])
    args = DartGRPOConfig(output_dir=str(directory / "out"), use_cpu=True, **trainer.given())
    policy = Policy(model, tokens.suppressed_ids)
    reference = None
    if trainer.beta:
        frozen = model if lora else frozen_copy(model, None, device)
        reference = Reference(frozen, tokens.suppressed_ids, adapter_off=lora is not None)
    runner = StepRunner(
        step_settings(args),
        Collator(tokens, vision, ImageCache(screens.__getitem__), share_prompts=False, pack_rows=True),
        policy,
        reference,
        demonstrations=(),
        ranks=ALONE,
        device=device,
        memory=StepMemory(ModelSize.of_directory(directory), rank_setting(config, 1)),
        backward=torch.Tensor.backward,
    )
    imitated = recorded(trajectories) if trainer.self_imitation_rows else []
    assert len(imitated) == trainer.self_imitation_rows
    lease = Lease((Group("g", "t", tuple(trajectories)),), 1, imitated=tuple(imitated))
    with counting() as counter:
        for step in range(args.steps_per_lease):
            runner.begin(lease, step=step, version=0, unpublished=0)
            runner.run(0, 1, step)
            runner.finish()
            model.zero_grad(set_to_none=True)
    return counter.get_total_flops(), assumed
