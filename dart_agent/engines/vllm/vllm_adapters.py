"""LoRA adapters as versions of a vLLM server's weights: each version is a model of its own name beside the base model.

The second way to update weights: nothing is paused, and a request that has begun goes on with the adapter that it
began with. The server must have been started with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.

Invariants:
    - A name stands for one version for ever: the server's caches are kept by name.
    - An adapter that a request uses is not unloaded.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dart_agent.engines.base.engine import RequestRefused
from dart_agent.engines.http.http_server import RouteMissing
from dart_agent.engines.vllm.vllm_control import VLLMControl

ADAPTER_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
KEPT = 2


@dataclass(frozen=True, slots=True)
class Served:
    """The model that a request names, and the adapter's version; None for the base model, whose server names it."""

    model: str
    version: int | None = None


def is_adapter(path: str | Path) -> bool:
    """Whether a directory holds an adapter, and not a whole model."""
    return (Path(path) / ADAPTER_CONFIG).exists() and not (Path(path) / MODEL_CONFIG).exists()


class Adapters:
    """The adapters of one server; `current` is what new requests ask for."""

    def __init__(self, base: str) -> None:
        """Begin with the base model."""
        self._base = base
        self.current = Served(base)
        self._loaded: list[str] = []
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def use(self) -> Iterator[Served]:
        """What a request asks for; it is kept until the end of the block."""
        served = self.current
        self._users[served.model] += 1
        try:
            yield served
        finally:
            self._users[served.model] -= 1

    async def load(self, control: VLLMControl, path: str, version: int, timeout_s: float) -> None:
        """Have the server load an adapter for new requests. Raises `EngineError`: they go on with what they had."""
        name = f"{self._base}-v{version}"
        try:
            await control.load_lora(name, path, timeout_s=timeout_s)
        except RouteMissing as error:
            raise RouteMissing(
                f"{error}; start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
            ) from error
        except RequestRefused:
            if name not in await control.models():
                raise  # else a client before this one had it loaded: a name never means another adapter
        self.current = Served(name, version)
        self._loaded = [known for known in self._loaded if known != name] + [name]
        await self._unload(control, self._loaded[:-KEPT])

    async def drop(self, control: VLLMControl) -> None:
        """Back to the base model, whose weights were replaced: adapters to the old ones mean nothing any more."""
        self.current = Served(self._base)
        await self._unload(control, list(self._loaded))

    async def _unload(self, control: VLLMControl, names: list[str]) -> None:
        for name in names:
            if not self._users[name]:
                with contextlib.suppress(RequestRefused):  # the server has let it go by itself
                    await control.unload_lora(name)
                self._loaded.remove(name)
