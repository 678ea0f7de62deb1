"""Policies by name, for the command line: "random", "oracle", a model, or anybody's `module:Class`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from dart_agent.conversation import ConversationConfig
from dart_agent.engines.base import Engine, Sampling
from dart_agent.evaluate import PlayableSession, PolicyFactory
from dart_agent.policies.oracle import OraclePolicy
from dart_agent.policies.policy import Policy
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.errors import ConfigurationError

BUILT_IN = ("random", "oracle", "vlm")


def policy_factory(spec: str) -> PolicyFactory:
    """The factory behind "random", "oracle" or "module:Class".

    A class (or function) of one's own is called without arguments, once per session; the current directory is
    searched for its module, too.

    Raises:
        ConfigurationError: no such policy.
    """
    if spec == "random":
        return lambda session: RandomPolicy()
    if spec == "oracle":
        return lambda session: OraclePolicy(session.oracle)
    make = _imported(spec)

    def build(session: PlayableSession) -> Policy:
        policy = make()
        if not callable(getattr(policy, "act", None)) or not callable(getattr(policy, "begin", None)):
            raise ConfigurationError(f"{spec} makes a {type(policy).__name__} without the methods begin and act")
        return policy

    return build


def model_factory(
    engine: Engine, model_dir: str, conversation: ConversationConfig, sampling: Sampling, action_format: str
) -> PolicyFactory:
    """Policies of one model that share its tokenizer and image processing."""
    from dart_agent.formats import get_format
    from dart_agent.policies.vlm import VLMPolicy
    from dart_agent.tokens import ModelTokens
    from dart_agent.vision import VisionSpec

    tokens, vision, chosen = ModelTokens.load(model_dir), VisionSpec.from_dir(model_dir), get_format(action_format)
    return lambda session: VLMPolicy(
        engine, tokens=tokens, vision=vision, action_format=chosen, conversation=conversation, sampling=sampling
    )


def _imported(spec: str) -> Any:
    """What `module:name` stands for."""
    module_name, colon, name = spec.partition(":")
    if not colon or not module_name or not name:
        raise ConfigurationError(f"unknown policy {spec!r}: use {', '.join(BUILT_IN)}, or module:Class for your own")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"policy {spec!r}: {error}; run from its directory, or install it") from error
    except AttributeError as error:
        raise ConfigurationError(f"policy {spec!r}: module {module_name} has no {name}") from error
    if not callable(found):
        raise ConfigurationError(f"policy {spec!r} is not a class or function")
    return found
