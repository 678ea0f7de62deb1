"""The passes of a lease through the model, with the operations of each, from a configuration. Pure; no torch.

A pass takes the layers over the rows that the trainer makes of an episode (`row_lengths`), and the head over the
positions of responses only. All steps count: those that a selection by entropy drops at the end of a row make it
shorter, and equal first prompts of a group that share a row run once, so that a lease takes this much at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_agent.prompting.conversation import kept
from dart_train.config.run_config import RunConfig
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import LOGITS_AT_ONCE, Setting
from dart_train.trainer.settings.grpo_settings import SUPERVISED_ROWS


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a configuration does not say.

    Attributes:
        steps: of an episode.
        response: tokens of one.
        image_tokens: tokens of a screenshot.
        step_s: seconds of a step, the desktop's and the model's.
        prompt: tokens of instruction, action space and chat layout; roughly those of UI-TARS's prompt.
    """

    steps: int = 15
    response: int = 110
    image_tokens: int = 2691
    step_s: float = 6.0
    screenshot_bytes: int = 400_000
    prompt: int = 600


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a lease; `flops`: its operations on all ranks together."""

    name: str
    flops: float


def row_lengths(config: RunConfig, assumed: Assumed) -> list[int]:
    """Tokens of each row of an episode: steps whose prompts extend one another are one row."""
    found: list[int] = []
    before = None
    for turns in range(1, assumed.steps + 1):
        first_image, first_text = kept(turns, config.agent)
        images, texts = turns - first_image, turns - first_text
        tokens = assumed.prompt + images * assumed.image_tokens + texts * assumed.response
        if before == (first_image, first_text):
            found[-1] = tokens
        else:
            found.append(tokens)
        before = (first_image, first_text)
    return found


def forward(config: RunConfig, size: ModelSize, assumed: Assumed) -> tuple[float, float, float]:
    """Operations of one forward pass over a lease: of the text layers, the head, and the vision tower."""
    episodes = config.trainer.groups_per_step * config.rollout.group_size
    layers = sum(size.forward_flops(tokens, tokens / 2, 0, 0, 0) for tokens in row_lengths(config, assumed))
    patches = assumed.image_tokens * size.merge**2
    head = size.forward_flops(0, 0, assumed.steps * assumed.response, 0, 0)
    tower = size.forward_flops(0, 0, 0, assumed.steps * patches, patches)
    return episodes * layers, episodes * head, episodes * tower


def rehearsed_steps(config: RunConfig) -> int:
    """Steps of demonstrations, own successes, shown pages and lessons that a lease is trained with, at least.

    Episodes are drawn whole, which may be some steps more, and early in a run there are fewer.
    """
    trainer = config.trainer
    if not trainer.supervised_coef:
        return config.teacher.rehearsed_rows
    own = 0 if trainer.shuffle_rewards else trainer.self_imitation_rows
    demonstrated = config.demonstrations
    any_kept = demonstrated.per_task or any(demonstrated.per_task_of.values()) or config.warmup.pool_sources
    return (SUPERVISED_ROWS if any_kept else 0) + own + trainer.shown_rows + config.teacher.rehearsed_rows


def passes(config: RunConfig, size: ModelSize, setting: Setting, assumed: Assumed, responses: int) -> tuple[Pass, ...]:
    """Every pass that the optimizer steps on one lease take; `responses`: tokens of a micro-batch's responses."""
    trainer = config.trainer
    layers, head, tower = forward(config, size, assumed)
    text = layers + head
    times = trainer.num_iterations
    parts = trainer.mini_batches
    chosen = trainer.top_entropy_quantile < 1
    recorded = trainer.recorded_entropies and trainer.entropy_mask_level == "step"
    later = (parts - 1) / parts
    scored = 0.0
    name = "scoring: entropies, and pi_old"
    if chosen and not recorded:
        scored = 1.0
    elif trainer.old_logprobs == "recompute" and parts > 1:
        scored, name = later, "scoring: pi_old of later mini-batches"
    checkpointing = layers if setting.checkpointing else 0.0
    if responses * size.vocabulary > LOGITS_AT_ONCE:
        checkpointing += head  # logits of a part are computed again for its gradient
    kl_share = 1 / trainer.kl_every if trainer.beta > 0 else 0.0
    reference_tower = tower if setting.reference else 0.0
    seen = times + (later if scored else 0.0)  # features of the first step hold those of all scored parts
    backward = 1 if setting.lora_rank else 2
    tower_learns = 4 if setting.checkpointing else 3
    learns = tower_learns if setting.trains_tower else 0
    steps = trainer.groups_per_step * config.rollout.group_size * assumed.steps
    alone = trainer.rehearsal_steps
    again = (times * parts + alone) / (parts + alone) * rehearsed_steps(config) / steps  # dealt among all of them
    one_more = text * (1 + backward) + checkpointing + tower * (1 + learns) + kl_share * (text + reference_tower)
    found = (
        Pass(name, scored * text),
        Pass("reference", times * kl_share * text),
        Pass("reference's vision tower", times * kl_share * reference_tower),
        Pass("forward", times * text),
        Pass("forward again, for the gradient", times * checkpointing),
        Pass("backward", times * backward * text),
        Pass("vision tower", seen * tower),
        Pass("vision tower again, and backward", times * learns * tower),
        Pass("rehearsed steps", again * one_more),
    )
    return tuple(one for one in found if one.flops)
