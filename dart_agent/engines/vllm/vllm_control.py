"""VLLMControl: the routes of a vLLM server that steer it.

The control routes exist only on a server that was started with `VLLM_SERVER_DEV_MODE=1`, and are not protected by its
API key: let such a server listen on loopback or a private network.
"""

import os
from dataclasses import dataclass
from typing import Any, Literal

from dart_agent.engines.base import engine_replies as replies
from dart_agent.engines.base.engine import BadResponse, EngineMismatch
from dart_agent.engines.http.http_server import HTTPServer, RouteMissing

KEY_ENV = "VLLM_API_KEY"
MOST_LOAD = 1e9
"""Largest value of a gauge of the server's metrics."""
PauseMode = Literal["keep", "wait", "abort"]


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Load that a server reports; `kv_use` is the used share of its cache of keys and values."""

    running: int = 0
    waiting: int = 0
    kv_use: float = 0.0


class VLLMControl(HTTPServer):
    """The routes of a vLLM server besides generating. Thin: one method is one request."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Like `HTTPServer`; `key` None takes it from the environment (`VLLM_API_KEY`)."""
        super().__init__(url, key=os.environ.get(KEY_ENV, "") if key is None else key, key_env=KEY_ENV)

    async def models(self, timeout_s: float = 10.0) -> list[str]:
        """Names that requests may give as their model."""
        data = await self.ask("GET", "/v1/models", timeout_s=timeout_s)
        try:
            return [str(entry["id"]) for entry in data["data"]]
        except (KeyError, TypeError):
            raise EngineMismatch(f"{self.url} does not list its models: is it a vLLM server?") from None

    async def load(self, timeout_s: float = 10.0) -> ServerLoad:
        """Return the load of all engines of the server together; values that its metrics do not name are 0."""
        values = _gauges(str(await self.ask("GET", "/metrics", timeout_s=timeout_s)))
        return ServerLoad(
            running=int(sum(values.get("vllm:num_requests_running", ()))),
            waiting=int(sum(values.get("vllm:num_requests_waiting", ()))),
            kv_use=max(values.get("vllm:kv_cache_usage_perc", ()), default=0.0),
        )

    async def pause(self, mode: PauseMode = "keep", timeout_s: float = 60.0) -> None:
        """Stop generating: freeze running requests ("keep"), finish them ("wait"), or end them ("abort").

        Caches are cleared: requests that continue afterwards are recomputed with the new weights.
        """
        await self._steer("/pause", params={"mode": mode, "clear_cache": "true"}, timeout_s=timeout_s)

    async def resume(self, timeout_s: float = 60.0) -> None:
        """Go on generating."""
        await self._steer("/resume", timeout_s=timeout_s)

    async def reload_weights(self, path: str, timeout_s: float = 600.0) -> None:
        """Read a checkpoint directory into the live model. The server must see it under this path."""
        await self.collective_rpc("reload_weights", {"weights_path": path}, timeout_s=timeout_s)

    async def collective_rpc(self, method: str, kwargs: dict[str, Any], timeout_s: float = 600.0) -> Any:
        """Call a method on every worker."""
        return await self._steer("/collective_rpc", json={"method": method, "kwargs": kwargs}, timeout_s=timeout_s)

    async def reset_prefix_cache(self) -> None:
        """Forget the keys and values of earlier prompts: they are those of the old weights."""
        await self._steer("/reset_prefix_cache")

    async def weight_info(self, timeout_s: float = 10.0) -> str:
        """The label of the weights."""
        data = await self._steer("/weight_info", method="GET", timeout_s=timeout_s)
        try:
            return str(data["weight_version"])
        except (KeyError, TypeError):
            raise EngineMismatch(f"{self.url}/weight_info names no version: {data!r}") from None

    async def update_weight_version(self, label: str) -> None:
        """Give the weights a label; generated tokens carry it."""
        await self._steer("/update_weight_version", json={"new_version": label})

    async def reset_image_caches(self) -> None:
        """Forget processed images and what the vision tower made of them: it may be of the old weights."""
        await self._steer("/reset_mm_cache")
        await self._steer("/reset_encoder_cache")

    async def world_size(self, timeout_s: float = 10.0) -> int:
        """Its workers, over all kinds of parallelism."""
        data = await self._steer("/get_world_size", method="GET", timeout_s=timeout_s)
        try:
            return replies.integer(data["world_size"], "the number of workers", 1, 1 << 20)
        except (KeyError, TypeError):
            raise EngineMismatch(f"{self.url}/get_world_size names none: {data!r}") from None

    async def init_weight_transfer(self, init_info: dict[str, Any], timeout_s: float = 600.0) -> None:
        """Have its workers meet a sender of weights (`--weight-transfer-config`); returns once they have."""
        await self._steer("/init_weight_transfer_engine", json={"init_info": init_info}, timeout_s=timeout_s)

    async def shutdown_weight_transfer(self, timeout_s: float = 60.0) -> None:
        """Have its workers leave the sender."""
        await self._steer("/shutdown_weight_transfer_engine", timeout_s=timeout_s)

    async def start_weight_update(self) -> None:
        """Begin an update by stream."""
        await self._steer("/start_weight_update")

    async def update_weights(self, update_info: dict[str, Any], timeout_s: float = 600.0) -> None:
        """Receive the tensors that the sender sends now."""
        await self._steer("/update_weights", json={"update_info": update_info}, timeout_s=timeout_s)

    async def finish_weight_update(self, label: str) -> None:
        """End an update by stream and label the weights."""
        await self._steer("/finish_weight_update", json={"weight_version": label})

    async def load_adapter(self, name: str, path: str, timeout_s: float = 600.0) -> None:
        """Serve a LoRA adapter under a name, beside what is served. The server must see its directory."""
        await self._adapt("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, timeout_s)

    async def unload_adapter(self, name: str, timeout_s: float = 60.0) -> None:
        """No longer serve an adapter under a name. A request that it still answers goes on."""
        await self._adapt("/v1/unload_lora_adapter", {"lora_name": name}, timeout_s)

    async def _adapt(self, path: str, body: dict[str, str], timeout_s: float) -> None:
        try:
            await self.ask("POST", path, json=body, timeout_s=timeout_s)
        except RouteMissing as error:
            raise RouteMissing(
                f"{error}; start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True to give it "
                "adapters"
            ) from error

    async def _steer(
        self,
        path: str,
        *,
        method: str = "POST",
        json: Any = None,
        params: dict[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Any:
        try:
            return await self.ask(method, path, json=json, params=params, timeout_s=timeout_s)
        except RouteMissing as error:
            raise RouteMissing(
                f"{error}; start the server with VLLM_SERVER_DEV_MODE=1 to steer it and to update its weights"
            ) from error


def _gauges(text: str) -> dict[str, list[float]]:
    """Values by metric in Prometheus's text format, one for each set of labels; what is no load (NaN) is left out."""
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if rest and not line.startswith("#"):
            try:
                value = replies.number(float(rest.rpartition("}")[2].split()[0]), name, 0.0, MOST_LOAD)
            except (ValueError, IndexError, BadResponse):
                continue  # not a gauge
            values.setdefault(name, []).append(value)
    return values
