"""The protocol of a policy. Twenty lines suffice for an own one: see `examples/`.

One policy object plays one episode at a time; `reset` starts the next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dart_agent.engines.base.engine import Generation, Prompt
from dart_gym.core.actions import Action
from dart_gym.core.outcomes import Observation, StepResult, TerminalState


@dataclass(frozen=True, slots=True)
class Episode:
    """The facts about an episode that a policy gets at its beginning."""

    task_id: str
    instruction: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's decision.

    Attributes:
        actions: to be carried out in order; empty only if `terminal` is set.
        text: what the model wrote; "" for policies without a model.
        error: why nothing could be parsed.
        terminal: PARSE_ERROR or MODEL_ERROR end the episode.
        actor: who decided: "policy", "oracle" or "human"; recorded with the step.
        usage: what a hosted model took, by kind of tokens, and in USD.
        advice: a teacher's opinion of the state, in addition to the decision; recorded with the step.
    """

    actions: tuple[Action, ...] = ()
    text: str = ""
    thought: str = ""
    error: str = ""
    terminal: TerminalState | None = None
    prompt: Prompt | None = None
    generation: Generation | None = None
    actor: str = "policy"
    usage: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""


class Policy(Protocol):
    """Turns observations into decisions."""

    def reset(self, episode: Episode) -> None:
        """A new episode starts; forget the last one."""

    async def act(self, observation: Observation) -> Decision:
        """Decide what to do next."""


class PlayableSession(Protocol):
    """The part of a session that a policy needs: `dart_gym.sessions.session.Session` and a cluster's client have it."""

    async def reset(
        self,
        task: str,
        *,
        seed: int,
        max_steps: int | None = None,
        time_limit_s: float | None = None,
        pacing: str | None = None,
        accessibility: bool = False,
    ) -> StepResult:
        """Start an episode."""

    async def step(self, action: Action) -> StepResult:
        """Carry out one action."""

    async def finish(self, terminal: TerminalState) -> StepResult:
        """End the episode from the policy's side."""

    async def oracle(self) -> Action:
        """The next action of a perfect user."""


PolicyFactory = Callable[[PlayableSession], Policy]
"""Makes the policy of one session."""
