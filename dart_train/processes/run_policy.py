"""The policy of a run: prompts, action format and sampling around whatever engine a worker is given."""

from collections.abc import Callable
from pathlib import Path

from dart_agent.engines.base.engine import Engine, Sampling
from dart_agent.policies.planned_policies import planned_policies
from dart_agent.policies.planner_grounder import InstructionPlanner
from dart_agent.policies.policy import Policy
from dart_agent.policies.policy_factory import model_policies
from dart_train.config.run_config import AgentConfig
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
