"""The policies of hosted models by the vendor's name, sharing one connection and one budget."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from dart_agent.policies.policy import PolicyFactory
from dart_agent.policies.policy_factory import PolicyOptions
from dart_gym.core.errors import ConfigurationError
from dart_gym_hosted_models.anthropic_policy import AnthropicPolicy
from dart_gym_hosted_models.gemini_policy import GeminiPolicy
from dart_gym_hosted_models.hosted_calls import HostedCalls, Provider, read_prices
from dart_gym_hosted_models.hosted_models import ANTHROPIC, GEMINI, OPENAI, HostedPolicy, connect
from dart_gym_hosted_models.openai_policy import OpenAIPolicy

HOSTED: dict[str, tuple[Provider, Callable[..., HostedPolicy], str]] = {
    "anthropic": (ANTHROPIC, AnthropicPolicy, "version"),
    "openai": (OPENAI, OpenAIPolicy, "tool"),
    "gemini": (GEMINI, GeminiPolicy, "functions"),
}
"""The API, its policy, and what that calls the kind of its computer tool."""


@contextlib.asynccontextmanager
async def open_hosted(
    spec: str, model: str | None, *, base_url: str | None = None, screenshots: int = 5, max_tokens: int = 2048,
    tool: str | None = None, budget_tokens: int | None = None, budget_usd: float | None = None, prices: str = "",
) -> AsyncIterator[PolicyFactory]:  # fmt: skip
    """Policies of one hosted model that share a connection and what may be spent.

    Raises:
        ConfigurationError: no model is named, the key is missing, or there is no such tool; or a budget without prices.
        MissingDependencyError: the SDK is not installed.
    """
    provider, policy, kind = HOSTED[spec]
    if not model:
        raise ConfigurationError(f"--policy {spec} needs --model NAME, a model with computer use of {provider.name}")
    calls = HostedCalls(provider, budget_tokens=budget_tokens, budget_usd=budget_usd, prices=read_prices(prices))
    client = connect(provider, base_url)
    options = {"client": client, "calls": calls, "max_tokens": max_tokens, **({kind: tool} if tool else {})}
    if "screenshots" in inspect.signature(policy).parameters:  # OpenAI keeps the conversation itself
        options["screenshots"] = screenshots
    close = getattr(client, "aclose", None) or client.close
    try:
        try:
            policy(model, **options)
        except TypeError as error:
            raise ConfigurationError(f"--tool: {error}") from None
        yield lambda session: policy(model, **options)
    finally:
        await close()


@dataclass(frozen=True, slots=True)
class HostedModels:
    """What `--policy` names: it opens the policies of one vendor's models with the options of the command line.

    Attributes:
        spec: the vendor, as in `HOSTED`.
        options: which options decide what a policy does; records keep them.
    """

    spec: str
    options: tuple[str, ...] = ("model", "screenshots", "max_tokens", "tool", "preset")

    def open_policies(self, options: PolicyOptions) -> contextlib.AbstractAsyncContextManager[PolicyFactory]:
        """Policies that share a connection and a budget. Raises as `open_hosted`."""
        return open_hosted(
            self.spec,
            options.model,
            base_url=options.engine_url,
            screenshots=options.screenshots,
            max_tokens=options.max_tokens,
            tool=options.tool,
            budget_tokens=options.budget_tokens,
            budget_usd=options.budget_usd,
            prices=options.prices,
        )


anthropic, openai, gemini = (HostedModels(spec) for spec in HOSTED)
