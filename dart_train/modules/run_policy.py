"""The policy of a run: prompts, action format and sampling around whatever engine a worker is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.policy import Policy
from dart_agent.policies.vlm_policy import VLMPolicy
from dart_agent.prompting.conversation import ConversationConfig
from dart_train.config.run_config import AgentConfig
from dart_train.rollout.settings.rollout_config import SamplingConfig


def conversation_config(agent: AgentConfig) -> ConversationConfig:
    """How prompts are made."""
    return ConversationConfig(style=agent.prompt, screenshots=agent.screenshots, texts=agent.texts, block=agent.block)


def make_policy(model_dir: str | Path, agent: AgentConfig, sampling: SamplingConfig) -> Callable[[Engine], Policy]:
    """Return a factory of policies that share one model's tokenizer and image processing.

    Args:
        model_dir: a Hugging Face directory.
        agent: prompts and format.
        sampling: temperature and length.
    """
    tokens = ModelTokens.load(model_dir)
    vision = VisionSpec.from_dir(model_dir)
    chosen = Sampling(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        stop_ids=tokens.stop_ids,
        suppressed_ids=tokens.suppressed_ids,
        training=True,
    )

    def build(engine: Engine) -> Policy:
        return VLMPolicy(
            engine,
            tokens=tokens,
            vision=vision,
            action_format=get_format(agent.format),
            conversation=conversation_config(agent),
            sampling=chosen,
        )

    return build
