"""The policy of a run: prompts, action format and sampling around whatever engine a worker is given."""

from collections.abc import Callable
from pathlib import Path

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.policies.planned_policies import planned_policies
from dart_agent.policies.planner_grounder import InstructionPlanner
from dart_agent.policies.policy import PlayableSession, Policy
from dart_agent.policies.policy_factory import model_policies
from dart_train.config.run_config import AgentConfig, RunConfig
from dart_train.rollout.play.oracle_demonstrations import DemonstratingPolicy
from dart_train.rollout.settings.rollout_config import SamplingConfig


def make_policy(
    model_dir: str | Path,
    agent: AgentConfig,
    sampling: SamplingConfig,
    *,
    entropy: bool = False,
    routing: bool = False,
) -> Callable[[Engine], Policy]:
    """Return a factory of policies that share one model's tokenizer and image processing.

    Args:
        model_dir: whose tokenizer and image processor they use.
        agent: how they prompt and read.
        sampling: how they sample.
        entropy: whether responses are recorded with their mean entropy, also where the engine has to be asked for it.
        routing: whether they are recorded with the experts that computed each token.
    """
    chosen = Sampling(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        training=True,
        entropy=entropy,
        routing=routing,
    )
    if agent.planner:
        return planned_policies(model_dir, chosen, InstructionPlanner(), patience=agent.patience)
    return model_policies(model_dir, agent, chosen, agent.format)


def make_oracle(model_dir: str | Path, config: RunConfig) -> Callable[[PlayableSession], Policy]:
    """Return a factory of policies that demonstrate in the words of a run's model."""
    tokens, vision = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir)

    def new_policy(session: PlayableSession) -> DemonstratingPolicy:
        return DemonstratingPolicy(
            session,
            tokens=tokens,
            vision=vision,
            action_format=get_format(config.agent.format),
            conversation=config.agent,
            grid=config.demonstrations.grid,
        )

    return new_policy
