"""Engines by address: one line for a command line or a configuration."""

from __future__ import annotations

from pathlib import Path

from dart_agent.engines.base.engine import Engine
from dart_gym.core.errors import ConfigurationError


def connect_engine(url: str, model_dir: str | Path, *, model: str = "policy", version: int = 0) -> Engine:
    """The client of an engine that runs elsewhere; the first call connects.

    Args:
        url: `ws://`, `wss://` or `ws+unix://` of `dart_agent.engines.remote.engine_server`; `http://` or `https://`
            of a vLLM server.
        model_dir: the model's tokenizer and processor files.
        model: what a vLLM server calls it.
        version: of the weights that a vLLM server was started with.

    Raises:
        ConfigurationError: no engine has such an address.
    """
    scheme = url.partition("://")[0]
    if scheme in ("http", "https"):
        from dart_agent.engines.vllm.vllm_engine import VLLMEngine

        return VLLMEngine(url, model_dir, model=model, version=version)
    if scheme in ("ws", "wss", "ws+unix"):
        from dart_agent.engines.remote.remote_engine import RemoteEngine

        return RemoteEngine(url)
    raise ConfigurationError(
        f"{url!r} is no address of an engine: use ws+unix:///path.sock or ws://host:port for our server, "
        "http://host:port for vLLM"
    )
