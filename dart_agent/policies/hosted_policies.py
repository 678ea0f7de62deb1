"""The policies of hosted models by the vendor's name, sharing one connection."""

import contextlib
from collections.abc import AsyncIterator

from dart_agent.policies.anthropic_policy import AnthropicPolicy
from dart_agent.policies.hosted_models import ANTHROPIC, OPENAI, connect
from dart_agent.policies.openai_policy import OpenAIPolicy
from dart_agent.policies.policy import PlayableSession, Policy, PolicyFactory
from dart_gym.core.errors import ConfigurationError


@contextlib.asynccontextmanager
async def open_hosted(
    spec: str, model: str | None, *, base_url: str | None = None, screenshots: int = 5, max_tokens: int = 2048
) -> AsyncIterator[PolicyFactory]:
    """Policies of one hosted model that share a connection. Raises `ConfigurationError`, `MissingDependencyError`."""
    provider = ANTHROPIC if spec == "anthropic" else OPENAI
    if not model:
        raise ConfigurationError(f"--policy {spec} needs --model NAME, a model with computer use of {provider.name}")
    client = connect(provider, base_url)

    def make(session: PlayableSession) -> Policy:
        if spec == "anthropic":
            return AnthropicPolicy(model, client=client, screenshots=screenshots, max_tokens=max_tokens)
        return OpenAIPolicy(model, client=client, max_tokens=max_tokens)

    try:
        yield make
    finally:
        await client.close()
