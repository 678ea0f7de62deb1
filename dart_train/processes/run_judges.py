"""The judges of a run."""

from dart_agent.judging.judge import Judge, make_judge
from dart_train.config.run_config import RunConfig
from dart_train.rollout.settings.reward_config import RewardConfig


def make_judges(config: RunConfig) -> dict[str, tuple[RewardConfig, Judge]]:
    """Return the judges that a run names, each with its settings."""
    return {name: (one, make_judge(one.kind, one.options)) for name, one in config.rewards.items()}
