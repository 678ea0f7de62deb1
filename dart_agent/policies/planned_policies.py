"""The policy "planner+grounder": a planner, a model that finds what it names, and maybe a verifier of that."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from dart_agent.engines.base.engine import Engine, ModelEngine, Sampling
from dart_agent.grounding.text_grounder import grounder_in
from dart_agent.grounding.verifier import VerifiedGrounder, Verifier
from dart_agent.policies.planner_grounder import Planner, PlannerGrounderPolicy
from dart_agent.policies.policy import Policy, PolicyFactory
from dart_agent.policies.policy_factory import PolicyOptions, open_engine
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.plugins import Registry, called_with, has

PLANNERS: Registry[Callable[[], Planner]] = Registry(
    "planner",
    "dart_gui.planners",
    {"instruction": "dart_agent.policies.planner_grounder:InstructionPlanner"},
    (called_with(), has(plan=("instruction", "actions", "history", "screenshot"))),
)


def _as_it_is(grounder: Any) -> Any:
    return grounder


@contextlib.asynccontextmanager
async def open_policies(options: PolicyOptions) -> AsyncIterator[PolicyFactory]:
    """Return the factory of such policies, around one engine.

    Raises:
        ConfigurationError: if the grounder is missing, or there is no such planner.
    """
    if options.model is None:
        raise ConfigurationError("--policy planner+grounder needs --model DIR: the grounder's")
    planner = PLANNERS.get(options.planner)()
    sampling = Sampling(max_tokens=options.max_tokens, temperature=options.temperature)
    async with contextlib.AsyncExitStack() as stack:

        def opened(model: str, url: str | None) -> ModelEngine:
            engine = open_engine(model, url)
            stack.push_async_callback(engine.close)
            return engine

        verified: Callable[[Any], Any] = _as_it_is
        if options.verifier:
            judge = Verifier.from_dir(opened(options.verifier, None), options.verifier)
            verified = functools.partial(VerifiedGrounder, verifier=judge, candidates=options.candidates)
        make = planned_policies(options.model, sampling, planner, patience=options.patience, verified=verified)
        engine = opened(options.model, options.engine_url)
        yield lambda session: make(engine)


def planned_policies(
    model_dir: str | Path,
    sampling: Sampling,
    planner: Planner,
    *,
    patience: int = 0,
    verified: Callable[[Any], Any] = _as_it_is,
) -> Callable[[Engine], Policy]:
    """Policies of a planner and one model that finds what it names, by its head or in text, around an engine each."""
    found = grounder_in(model_dir, sampling)
    return lambda engine: PlannerGrounderPolicy(planner, verified(found.around(engine)), patience=patience + 1)
