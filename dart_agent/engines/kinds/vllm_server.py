"""vLLM: a server over HTTP, in an environment of its own.

Invariants:
    - A server for this machine listens on loopback: its steering routes have no key. One for other nodes has TLS, and
      a guard that asks for the run's token on every route.
    - What training needs of it (token ids as they are, log-probabilities of what was sampled from, no settings out of
      the model's own file, weight updates) is always asked for; `options` come last and win.
"""

import json
from typing import ClassVar

from pydantic import Field

from dart_agent.engines.base.engine import ModelEngine
from dart_agent.engines.base.engine_kind import Command, Connection, EngineKind, Launch, Transfer
from dart_agent.engines.vllm.adapter_names import KEPT_ADAPTERS, rank_limit
from dart_agent.engines.vllm.vllm_environment import program
from dart_agent.engines.weight_stream import DIRECTORY, GUARD, RECEIVER, TCP_BACKEND
from dart_agent.models.families.family_table import family_in
from dart_gym.utils.processes import free_port

REPORT_ROUTING = "--enable-return-routed-experts"


class VLLMServer(EngineKind):
    """Any model that vLLM serves. An update pauses the server."""

    schemes: ClassVar[tuple[str, ...]] = ("http", "https")
    transfers: ClassVar[tuple[Transfer, ...]] = ("files", "nccl", "tcp", "adapter")
    drains: ClassVar[bool] = True
    computes_on_gpus: ClassVar[bool] = True

    model: str = Field(default="policy", min_length=1, description="what the servers call the model")
    program: tuple[str, ...] = Field(
        default=(), description="the command, without `serve`; empty for that of `dart-train engines install`"
    )
    options: tuple[str, ...] = Field(default=(), description="more of its command line")
    environment: dict[str, str] = Field(default={}, description="more environment variables")
    max_length: int = Field(default=32768, ge=1, description="most tokens of a prompt and its response")

    @property
    def reports_routing(self) -> bool:
        """See `EngineKind`: an option of the command line, which keeps a buffer on each GPU."""
        return REPORT_ROUTING in self.options

    def connect(self, connection: Connection) -> ModelEngine:
        """See `EngineKind`."""
        from dart_agent.engines.vllm.vllm_engine import VLLMEngine

        return VLLMEngine(
            connection.url,
            connection.model_dir,
            model=self.model,
            name=connection.name,
            version=connection.version,
            timeout_s=connection.request_timeout_s,
            update_timeout_s=connection.update_timeout_s,
            pause=connection.pause,
            loading=connection.loading,
            adapters=connection.adapters,
        )

    def command(self, launch: Launch) -> Command:
        """A server on a free port of loopback; a server that finds its port taken ends and is started again."""
        public = launch.public
        host, port = (public.host, public.port) if public is not None else ("127.0.0.1", free_port())
        argv = [*(self.program or (program(),)), "serve", launch.path, "--served-model-name", self.model]
        argv += ["--host", host, "--port", str(port)]
        argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        limits = json.dumps({"image": launch.images, "video": 0})
        argv += ["--limit-mm-per-prompt", limits, "--max-model-len", str(self.max_length)]
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_HOST_IP": "127.0.0.1",  # its own processes talk on loopback, too
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": "",  # it has an environment of its own, and finds nothing of ours
            "TMPDIR": str(launch.directory),  # else the sockets and files of a server that is killed stay in /tmp
        }
        environment |= launch.visible_gpus
        if launch.gpus:
            argv += ["--tensor-parallel-size", str(len(launch.gpus))]
            if launch.gpu_memory is not None:
                argv += ["--gpu-memory-utilization", f"{launch.gpu_memory:g}"]
        if public is not None:  # vLLM's own key guards only what is below /v1, not what steers it
            argv += ["--ssl-certfile", public.certificate, "--ssl-keyfile", public.key, "--middleware", GUARD]
            environment["PYTHONPATH"] = str(DIRECTORY)
        match launch.transfer:
            case "nccl":
                argv += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
            case "tcp":
                argv += ["--weight-transfer-config", json.dumps({"backend": TCP_BACKEND})]
                argv += ["--worker-extension-cls", RECEIVER]
                environment["PYTHONPATH"] = str(DIRECTORY)  # the receiver, and nothing else of ours
            case "adapter":
                argv += ["--enable-lora", "--max-lora-rank", str(rank_limit(launch.lora_rank))]
                argv += ["--max-loras", str(KEPT_ADAPTERS), "--max-cpu-loras", str(2 * KEPT_ADAPTERS)]
                argv += _adapted_layers(launch)
                environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        url = f"{'http' if public is None else 'https'}://{host}:{port}"
        return Command((*argv, *self.options), url, {**environment, **self.environment}, has_workers=True)


def _adapted_layers(launch: Launch) -> list[str]:
    """Return the option without which each expert of a mixture gets places for adapters, which nothing ever fills.

    vLLM knows layers by the last part of their names: a regular expression for whole names has no such option.
    """
    family = family_in(launch.path)
    targets = launch.lora_target_modules or family.adapted
    if not family.mixture or len(targets) == 1:
        return []
    return ["--lora-target-modules", *dict.fromkeys(target.rpartition(".")[2] for target in targets)]


KIND = VLLMServer
