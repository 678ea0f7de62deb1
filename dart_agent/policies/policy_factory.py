"""Policies by name, for the command line: built in, of an installed package, or anybody's `module:Class`."""

import contextlib
import dataclasses
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from dart_agent.engines.base.engine import Engine, ModelEngine, Sampling
from dart_agent.engines.base.engine_kind import REQUEST_TIMEOUT_S
from dart_agent.formats import get_format
from dart_agent.models.model_directory import Decoder, model_digest, token_decoder
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import PlayableSession, Policy, PolicyFactory
from dart_agent.presets import get_preset
from dart_agent.presets.preset_check import check_preset, narrowed
from dart_agent.prompting.conversation import ConversationConfig, style_for
from dart_gym.core.errors import ConfigurationError
from dart_gym.core.project_pages import page
from dart_gym.utils.plugins import Registry, called_with, has
from dart_gym.utils.waits import waiting_for

CHAT_TIMEOUT_S = 180.0
_PLANNED_ALONE = ("planner", "verifier", "candidates")
_HOSTED_ALONE = ("tool", "budget_tokens", "budget_usd", "prices")


def _plays(found: Any) -> str | None:
    """Check a policy: a factory needs options, a class must be a policy, a function's result is checked when called."""
    if hasattr(found, "open_policies"):
        return has(open_policies=("options",))(found)
    policy = has(reset=("episode",), act=("observation",))
    return called_with()(found) or (policy(found) if isinstance(found, type) else None)


POLICIES: Registry[Callable[[], Policy]] = Registry(
    "policy",
    "dart_gui.policies",
    {
        "random": "dart_agent.policies.random_policy:RandomPolicy",
        "oracle": "dart_agent.policies.oracle_policy:OraclePolicy",
        "human": "dart_agent.policies.human_policy:HumanPolicy",
        "vlm": "dart_agent.policies.vlm_policy:VLMPolicy",
        "chat": "dart_agent.policies.vlm_policy:VLMPolicy",
        "planner+grounder": "dart_agent.policies.planned_policies",
    },
    (_plays,),
)


class PolicyOptions(ConversationConfig):
    """A policy as the command line names it, and how a model behind it is asked."""

    policy: str = Field(
        "random",
        description='"random", "oracle", "human", "vlm", "chat", "planner+grounder", a plug-in such as "anthropic", '
        "or module:Class.",
    )
    model: str | None = Field(
        None,
        description="vlm: model directory; planner+grounder: the grounder's, with a head or without; chat and hosted "
        "ones: name of the model.",
    )
    planner: str = Field(
        "instruction",
        description='planner+grounder: "instruction" says to click on what the instruction names, at every step; a '
        "plug-in; or module:Class, called without arguments.",
    )
    verifier: str | None = Field(
        None,
        description="planner+grounder: model directory that judges the grounder's candidates "
        "(docs/guides/grounding.md).",
    )
    candidates: int = Field(5, ge=1, description="planner+grounder: most candidates that the verifier is shown.")
    engine_url: str | None = Field(
        None,
        description="vlm: a running engine (ws://) or vLLM (http://), else it is loaded here; chat: base URL of "
        "chat completions (http://host/v1); hosted ones: base URL.",
    )
    format: str = Field(
        "ui_tars", description="vlm, chat: how it writes actions, see docs/reference/formats.md; the style follows it."
    )
    max_tokens: int = Field(500, ge=1, description="Models: longest response in tokens.")
    temperature: float = Field(1.0, ge=0, description="vlm, chat: of the sampling, 0 for greedy.")
    tool: str | None = Field(
        None,
        description="anthropic: version of its computer tool, 2024-10 to 2026-08; openai: computer or "
        "computer_use_preview; gemini: functions of 3.5 or 2.5.",
    )
    budget_tokens: int | None = Field(None, ge=1, description="Hosted ones: most tokens that the command may take.")
    budget_usd: float | None = Field(None, gt=0, description="Hosted ones: most money that it may cost, by prices.")
    prices: str = Field(
        "", description="Hosted ones: USD per million tokens, such as input=3,output=15,cached=0.3,written=3.75."
    )

    take_over: bool = Field(
        False, description="Print the address of a page where a person may take over and give back."
    )

    @model_validator(mode="before")
    @classmethod
    def _style_of_format(cls, values: Any) -> Any:
        """A prompt is in the words of the format, where nothing else is said."""
        if isinstance(values, dict) and values.get("style") is None and not values.get("preset"):
            return {**values, "style": style_for(get_format(values.get("format", "ui_tars")))}
        return values

    def settings(self) -> dict[str, Any]:
        """Return the options that change the policy's behaviour, as JSON; not where a server listens."""
        if self.take_over:
            return {**self.model_copy(update={"take_over": False}).settings(), "take_over": True}
        if self.policy in ("vlm", "chat", "planner+grounder"):
            others = _HOSTED_ALONE if self.policy == "planner+grounder" else (*_HOSTED_ALONE, *_PLANNED_ALONE)
            own = self.model_dump(exclude={"policy", "model", "engine_url", "take_over", *others})
            model = self.model if self.policy == "chat" else model_digest(Path(self.model or ""))
            return {"model": model, **own, "preset_hash": get_preset(self.preset).digest if self.preset else None}
        found = POLICIES.get(self.policy) if self.policy in POLICIES.names() else None
        return self.model_dump(include=set(getattr(found, "options", ())))

    def decoder(self) -> Decoder | None:
        """Of the model's tokenizer; None where it has none here."""
        return token_decoder(Path(self.model)) if self.policy == "vlm" and self.model else None


@contextlib.asynccontextmanager
async def open_policies(options: PolicyOptions, timeout_s: float | None = None) -> AsyncIterator[PolicyFactory]:
    """The factory of a policy, with what its policies share around it. Raises `ConfigurationError`.

    A decision may take `timeout_s`: an engine's own limit is raised to it.
    """
    async with contextlib.AsyncExitStack() as stack:
        make = await stack.enter_async_context(_opened(options, timeout_s or 0.0))
        if options.take_over and options.policy != "human":
            from dart_agent.policies.human_policy import open_human

            make = await stack.enter_async_context(open_human(inner=make))
        yield make


@contextlib.asynccontextmanager
async def _opened(options: PolicyOptions, timeout_s: float) -> AsyncIterator[PolicyFactory]:
    if options.policy in ("grounder", "planner"):
        raise ConfigurationError(
            f"the preset {options.preset} is of a {options.policy}, which does not play alone: take --policy "
            f"planner+grounder, or put both together in Python, see {page('guides/policies')}"
        )
    found: Any = POLICIES.get(options.policy)  # also of those that are opened below: unknown names are refused first
    if options.policy in ("vlm", "chat"):
        async with _vlm_policies(options, timeout_s) as factory:
            yield factory
    elif hasattr(found, "open_policies"):
        async with found.open_policies(options) as factory:
            yield factory
    elif options.policy == "human":
        from dart_agent.policies.human_policy import open_human

        async with open_human() as factory:
            yield factory
    else:
        yield policy_factory(options.policy)


@contextlib.asynccontextmanager
async def _vlm_policies(options: PolicyOptions, timeout_s: float) -> AsyncIterator[PolicyFactory]:
    sampling = Sampling(max_tokens=options.max_tokens, temperature=options.temperature)
    opened = _chat if options.policy == "chat" else _local
    make, engine = opened(options, sampling, timeout_s)
    try:
        yield lambda session: make(engine)
    finally:
        await engine.close()


Made = tuple[Callable[[Engine], Policy], ModelEngine]


def _local(options: PolicyOptions, sampling: Sampling, timeout_s: float) -> Made:
    """Policies and engine of a model whose tokenizer is here."""
    if options.model is None:
        raise ConfigurationError("--policy vlm needs --model DIR: its tokenizer, and its weights without --engine-url")
    make = model_policies(options.model, options, sampling, options.format)
    return make, open_engine(options.model, options.engine_url, max(REQUEST_TIMEOUT_S, timeout_s))


def _chat(options: PolicyOptions, sampling: Sampling, timeout_s: float) -> Made:
    """Policies and engine of a model behind chat completions, whatever its tokenizer."""
    from dart_agent.engines.http.openai_compatible import OpenAICompatibleEngine
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens
    from dart_agent.policies.vlm_policy import VLMPolicy

    if not options.model or not options.engine_url:
        raise ConfigurationError("--policy chat needs --model NAME and --engine-url http://host/v1 of chat completions")
    tokens, chosen = ModelTokens.plain(), get_format(options.format)
    least, most = options.min_pixels or 56 * 56, options.max_pixels or 16384 * 28 * 28
    vision = VisionSpec(min_pixels=least, max_pixels=most)

    def make(engine: Engine) -> Policy:
        return VLMPolicy(
            engine, tokens=tokens, vision=vision, action_format=chosen, conversation=options, sampling=sampling
        )

    return make, OpenAICompatibleEngine(
        options.engine_url, options.model, tokens, timeout_s=max(CHAT_TIMEOUT_S, timeout_s)
    )


def open_engine(model: str | Path, url: str | None, request_timeout_s: float | None = None) -> ModelEngine:
    """The engine at a URL, or one that loads a model directory here."""
    if url is not None:
        from dart_agent.engines.engine_kinds import connect_engine

        return connect_engine(url, model, request_timeout_s=request_timeout_s or REQUEST_TIMEOUT_S)
    from dart_agent.engines.embedded.transformers_engine import TransformersEngine

    with waiting_for(f"the model in {model}, which is loaded"):
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
    """Policies of one model, around an engine each, that share its tokenizer and image processing."""
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens
    from dart_agent.policies.vlm_policy import VLMPolicy

    if conversation.preset:
        for difference in check_preset(get_preset(conversation.preset), Path(model_dir)):
            warnings.warn(f"preset {conversation.preset}: {difference}", stacklevel=2)
    tokens = ModelTokens.load(model_dir)
    vision = VisionSpec.from_dir(model_dir)
    chosen = get_format(action_format)
    least, most = narrowed(vision, conversation.min_pixels, conversation.max_pixels)
    vision = dataclasses.replace(vision, min_pixels=least, max_pixels=most)
    return lambda engine: VLMPolicy(
        engine, tokens=tokens, vision=vision, action_format=chosen, conversation=conversation, sampling=sampling
    )
