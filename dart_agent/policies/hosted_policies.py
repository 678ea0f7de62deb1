"""The policies of hosted models by the vendor's name, sharing one connection and one budget."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable

from dart_agent.policies.anthropic_policy import AnthropicPolicy
from dart_agent.policies.gemini_policy import GeminiPolicy
from dart_agent.policies.hosted_calls import HostedCalls, Provider, read_prices
from dart_agent.policies.hosted_models import ANTHROPIC, GEMINI, OPENAI, HostedPolicy, connect
from dart_agent.policies.openai_policy import OpenAIPolicy
from dart_agent.policies.policy import PolicyFactory
from dart_gym.core.errors import ConfigurationError

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
