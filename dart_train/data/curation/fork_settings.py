"""Which episodes are forked, and at which step: the settings, the rules by name, and the decision. Pure.

A rule is a class with one method, called without arguments: `score(episode, step, chance)` says how much a step is
worth to be forked at; the steps with the highest scores are. `data.curation.forks.rule` names it: built in, of an
installed package (entry points of "dart_gui.fork_rules"), or `module:Class`.
"""

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from pydantic import Field, field_validator, model_validator

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.section import Section, as_mistake
from dart_gym.utils.plugins import Registry, called_with, has


class ForkRule(Protocol):
    """Chooses the steps at which episodes are forked."""

    def score(self, episode: Trajectory, step: int, chance: float) -> float | None:
        """Return how much a step is worth, None for not at all; `chance` is drawn from [0, 1) for each step."""


class HighestEntropy:
    """The step that the policy was least sure of, by the mean entropy of its tokens.

    Engines that do not know entropies (vLLM) record the log-probabilities of what they sampled: the mean of their
    negatives estimates the entropy without bias.
    """

    def score(self, episode: Trajectory, step: int, chance: float) -> float | None:
        """Return the mean entropy in nats."""
        found = episode.steps[step]
        if found.entropy is not None:
            return found.entropy
        return -sum(found.logprobs) / len(found.logprobs) if found.logprobs else None


class RandomStep:
    """Any step, with equal chances."""

    def score(self, episode: Trajectory, step: int, chance: float) -> float | None:
        """Return the chance."""
        return chance


FORK_RULES: Registry[Callable[[], ForkRule]] = Registry(
    "fork rule",
    "dart_gui.fork_rules",
    {"entropy": HighestEntropy, "random": RandomStep},
    (called_with(), has(score=("episode", "step", "chance"))),
)


class ForkConfig(Section):
    """Forks: after a group, some of its episodes are played on from one of their steps, on desktops of their own."""

    per_group: int = Field(0, ge=0, description="Most forks of a group that was played; 0 for no forks.")
    continuations: int = Field(
        8, ge=2, description="Rollouts from the step of a fork on. They are a group of their own."
    )
    when: Literal["failed", "no_signal", "always"] = Field(
        "failed",
        description="Groups that are forked: those in which no rollout got any reward, those whose rewards are all "
        "equal, or all.",
    )
    of: Literal["group", "pool"] = Field(
        "group",
        description="Episodes that are forked: the group's own, or successes of the experience pool of the same task, "
        "such as demonstrations.",
    )
    rule: str = Field(
        "entropy",
        description='Step that is forked: the one of the highest mean token "entropy" in the group, a "random" one, or '
        "by a rule of an installed package, or module:Class.",
    )
    depth: int = Field(1, ge=1, le=8, description="Forks of forks, of forks, ...: 1 forks rollouts only.")
    tolerance: float = Field(
        0.0001,
        ge=0.0,
        le=1.0,
        description="Share of a screenshot's pixels, the pointer left out, that may differ from the recorded one at "
        "the fork; with more the fork is given up.",
    )

    @model_validator(mode="after")
    def _rule_can_score(self) -> "ForkConfig":
        if self.of == "pool" and self.rule == "entropy":
            raise ValueError(
                "of: pool and rule: entropy do not go together, since nobody knows how sure a demonstration was: set "
                "rule to random"
            )
        return self

    @field_validator("rule")
    @classmethod
    def _rule_can_be_used(cls, name: str) -> str:
        with as_mistake():
            FORK_RULES.get(name)
        return name


def forked_steps(
    episodes: Sequence[Trajectory], config: ForkConfig, can_fork: Callable[[Trajectory, int], bool], key: str
) -> list[tuple[int, int]]:
    """Return (episode, step) of the forks of a group that was played, at most `per_group`. Chance comes from its key.

    Of equal scores the earlier episode's, then the earlier step, is taken.
    """
    return best_steps(episodes, config, can_fork, key) if is_forked(episodes, config) else []


def is_forked(episodes: Sequence[Trajectory], config: ForkConfig) -> bool:
    """Return whether a group that was played is one of those that `when` names."""
    rewards = [episode.score or 0.0 for episode in episodes]
    wanted = {"failed": max(rewards, default=1.0) <= 0.0, "no_signal": len(set(rewards)) == 1, "always": True}
    return wanted[config.when]


def best_steps(
    episodes: Sequence[Trajectory], config: ForkConfig, can_fork: Callable[[Trajectory, int], bool], key: str
) -> list[tuple[int, int]]:
    """Return the (episode, step) with the highest scores by the rule, at most `per_group`."""
    rule = FORK_RULES.get(config.rule)()
    draw = random.Random(key)
    scored: list[tuple[float, int, int]] = []
    for place, episode in enumerate(episodes):
        for step in range(len(episode.steps)):
            chance = draw.random()
            score = rule.score(episode, step, chance) if can_fork(episode, step) else None
            if score is not None:
                scored.append((-score, place, step))
    return [(place, step) for _, place, step in sorted(scored)[: config.per_group]]
