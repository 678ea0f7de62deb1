"""Policies by name, for the command line: built in, of an installed package, or anybody's `module:Class`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from dart_agent.engines.base.engine import Engine, ModelEngine, Sampling
from dart_agent.formats import get_format
from dart_agent.formats.ui_tars_prompts import Style
from dart_agent.models.model_directory import Decoder, model_digest, token_decoder
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import PlayableSession, Policy, PolicyFactory
from dart_agent.prompting.conversation import ConversationConfig, style_for
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.plugins import Registry, called_with, has

HOSTED = ("anthropic", "openai")


def _plays(found: Any) -> str | None:
    """A class must be a policy; a function may make one, which is seen when it is called."""
    return has(reset=("episode",), act=("observation",))(found) if isinstance(found, type) else None


POLICIES: Registry[Callable[[], Policy]] = Registry(
    "policy",
    "dart_gui.policies",
    {
        "random": "dart_agent.policies.random_policy:RandomPolicy",
        "oracle": "dart_agent.policies.oracle_policy:OraclePolicy",
        "human": "dart_agent.policies.human_policy:HumanPolicy",
        "vlm": "dart_agent.policies.vlm_policy:VLMPolicy",
        "anthropic": "dart_agent.policies.anthropic_policy:AnthropicPolicy",
        "openai": "dart_agent.policies.openai_policy:OpenAIPolicy",
    },
    (called_with(), _plays),
)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """A policy as the command line names it.

    Attributes:
        spec: a name in `POLICIES`, or `module:Class`.
        model: "vlm": its directory; hosted models: their name.
        url: "vlm": of an engine server, None to load the model here; hosted models: another base URL.
        prompt: a style of `ConversationConfig`; in the words of the format if None ("vlm" only).
        screenshots: newest screenshots in the prompt.
        texts: newest responses in the prompt ("vlm" only).
        max_tokens: longest response.
        temperature: 0 for greedy ("vlm" only).
        format: how the model writes actions, a name of `dart_agent.formats` ("vlm" only).
    """

    spec: str
    model: str | None = None
    url: str | None = None
    prompt: str | None = None
    screenshots: int = 5
    texts: int = 35
    max_tokens: int = 500
    temperature: float = 1.0
    format: str = "ui_tars"

    def settings(self) -> dict[str, Any]:
        """What of it changes what the policy does, as JSON; not where a server listens."""
        if self.spec == "vlm":
            return {
                "model": model_digest(Path(self.model or "")),
                "format": self.format,
                "prompt": self.prompt_style(),
                "screenshots": self.screenshots,
                "texts": self.texts,
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
            }
        if self.spec in HOSTED:
            return {"model": self.model, "screenshots": self.screenshots, "max_tokens": self.max_tokens}
        return {}

    def prompt_style(self) -> Style:
        """The style of prompts.

        Raises:
            ConfigurationError: there is no such style, or no such format.
        """
        if self.prompt is None:
            return style_for(get_format(self.format))
        if self.prompt not in get_args(Style):
            raise ConfigurationError(f"unknown prompt style {self.prompt!r}; known: {', '.join(get_args(Style))}")
        return cast(Style, self.prompt)

    def decoder(self) -> Decoder | None:
        """Of the model's tokenizer; None where it has none here."""
        return token_decoder(Path(self.model)) if self.spec == "vlm" and self.model else None


@contextlib.asynccontextmanager
async def open_policies(options: PolicyOptions) -> AsyncIterator[PolicyFactory]:
    """The factory of a policy, with what its policies share (an engine, a connection) around it.

    Raises:
        ConfigurationError: no such policy, or it lacks a setting.
    """
    POLICIES.get(options.spec)  # also of those that are opened below: an unknown name is refused first
    if options.spec == "vlm":
        async with _vlm_policies(options) as factory:
            yield factory
    elif options.spec in HOSTED:
        from dart_agent.policies.hosted_policies import open_hosted

        async with open_hosted(
            options.spec,
            options.model,
            base_url=options.url,
            screenshots=options.screenshots,
            max_tokens=options.max_tokens,
        ) as factory:
            yield factory
    elif options.spec == "human":
        from dart_agent.policies.human_policy import open_human

        async with open_human() as factory:
            yield factory
    else:
        yield policy_factory(options.spec)


@contextlib.asynccontextmanager
async def _vlm_policies(options: PolicyOptions) -> AsyncIterator[PolicyFactory]:
    style = options.prompt_style()
    if options.model is None:
        raise ConfigurationError("--policy vlm needs --model DIR: its tokenizer, and its weights without --engine-url")
    conversation = ConversationConfig(style=style, screenshots=options.screenshots, texts=options.texts)
    sampling = Sampling(max_tokens=options.max_tokens, temperature=options.temperature)
    engine = _engine(options.model, options.url)
    make = model_policies(options.model, conversation, sampling, options.format)
    try:
        yield lambda session: make(engine)
    finally:
        await engine.close()


def _engine(model: str, url: str | None) -> ModelEngine:
    if url is not None:
        from dart_agent.engines.engine_kinds import connect_engine

        return connect_engine(url, model)
    from dart_agent.engines.embedded.transformers_engine import TransformersEngine

    return TransformersEngine(Path(model))


def policy_factory(spec: str) -> PolicyFactory:
    """The factory behind a policy that needs no options: "random", "oracle", an entry point or "module:Class".

    A class (or function) of one's own is called without arguments, once per session.

    Raises:
        ConfigurationError: no such policy.
    """
    if spec == "oracle":
        return lambda session: OraclePolicy(session.oracle)
    make = POLICIES.get(spec)

    def build(session: PlayableSession) -> Policy:
        policy = make()
        if not callable(getattr(policy, "act", None)) or not callable(getattr(policy, "reset", None)):
            raise ConfigurationError(f"{spec} makes a {type(policy).__name__} without the methods reset and act")
        return policy

    return build


def model_policies(
    model_dir: str | Path, conversation: ConversationConfig, sampling: Sampling, action_format: str
) -> Callable[[Engine], Policy]:
    """Policies of one model, around an engine each, that share its tokenizer and image processing.

    Args:
        model_dir: a Hugging Face directory.
        conversation: how prompts are made.
        sampling: how responses are sampled.
        action_format: how the model writes actions, a name of `dart_agent.formats`.
    """
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens
    from dart_agent.policies.vlm_policy import VLMPolicy

    tokens, vision, chosen = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir), get_format(action_format)
    return lambda engine: VLMPolicy(
        engine, tokens=tokens, vision=vision, action_format=chosen, conversation=conversation, sampling=sampling
    )
