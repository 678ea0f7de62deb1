"""Engines by name and by address. The built-in kinds are the files of `dart_agent.engines.kinds`.

A name is a built-in kind ("transformers", "vllm"), an entry point of an installed package in the group
"dart_gui.engines", or `module:Class` of an `EngineKind`.
"""

from pathlib import Path
from typing import Any

from dart_agent.engines.base.engine import ModelEngine
from dart_agent.engines.base.engine_kind import REQUEST_TIMEOUT_S, Connection, EngineKind
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.plugins import Registry

_SUFFIX = "_server"
_FILES = Path(__file__).with_name("kinds").glob(f"*{_SUFFIX}.py")


def _is_kind(found: Any) -> str | None:
    return None if isinstance(found, type) and issubclass(found, EngineKind) else "is not a subclass of EngineKind"


ENGINES: Registry[type[EngineKind]] = Registry(
    "engine",
    "dart_gui.engines",
    {file.stem.removesuffix(_SUFFIX): f"dart_agent.engines.kinds.{file.stem}:KIND" for file in _FILES},
    (_is_kind,),
)


def kind_of_url(url: str, preferred: EngineKind | None = None) -> EngineKind:
    """Return the kind of engine that an address belongs to, by its scheme.

    Raises:
        ConfigurationError: if no engine has this scheme.
    """
    scheme = url.partition("://")[0]
    if preferred is not None and scheme in preferred.schemes:
        return preferred
    for name in ENGINES.built_in:
        kind = ENGINES.get(name)
        if scheme in kind.schemes:
            return kind()
    raise ConfigurationError(
        f"{url!r} is no address of an engine: use ws+unix:///path.sock or ws://host:port for our server, "
        "http://host:port for vLLM"
    )


def connect_engine(
    url: str, model_dir: str | Path, *, version: int = 0, request_timeout_s: float = REQUEST_TIMEOUT_S
) -> ModelEngine:
    """Return the client of a remote engine; it connects at the first call.

    Raises:
        ConfigurationError: if no engine has this scheme.
    """
    connection = Connection(url, model_dir, version=version, request_timeout_s=request_timeout_s)
    return kind_of_url(url).connect(connection)
