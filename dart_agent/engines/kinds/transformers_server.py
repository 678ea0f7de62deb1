"""Our own engine: the model in a process of ours (`dart_agent.engines.remote.engine_server`), over a websocket."""

import sys
from typing import ClassVar

from pydantic import Field

from dart_agent.engines.base.engine import ModelEngine
from dart_agent.engines.base.engine_kind import Command, Connection, EngineKind, Launch, Transfer


class TransformersServer(EngineKind):
    """Qwen-VL models by torch and transformers. It updates its weights between two batches."""

    schemes: ClassVar[tuple[str, ...]] = ("ws", "wss", "ws+unix")
    transfers: ClassVar[tuple[Transfer, ...]] = ("files", "memory")
    program: ClassVar[tuple[str, ...]] = (sys.executable, "-m", "dart_agent.engines.remote.engine_server")

    threads: int = Field(default=1, ge=1, description="torch threads of a replica")
    max_batch: int = Field(default=32, ge=1, description="requests that one forward pass takes together")

    @property
    def reports_routing(self) -> bool:
        """See `EngineKind`."""
        return True

    def connect(self, connection: Connection) -> ModelEngine:
        """See `EngineKind`."""
        from dart_agent.engines.remote.remote_engine import RemoteEngine

        return RemoteEngine(
            connection.url,
            request_timeout_s=connection.request_timeout_s,
            update_timeout_s=connection.update_timeout_s,
        )

    def command(self, launch: Launch) -> Command:
        """A server on a Unix socket, which needs no port and no key, unless other nodes are to reach it."""
        public = launch.public
        url = f"ws+unix://{launch.directory / f'engine-{launch.index}.sock'}"
        if public is not None:
            url = f"wss://{public.host}:{public.port}"
        argv = [*self.program, "--model", launch.path, "--listen", url, "--name", launch.name]
        argv += ["--tls-cert", public.certificate, "--tls-key", public.key] if public is not None else []
        argv += ["--threads", str(self.threads), "--max-batch", str(self.max_batch), "--version", str(launch.version)]
        environment = {"OMP_NUM_THREADS": str(self.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        environment["TOKENIZERS_PARALLELISM"] = "false"
        if launch.gpus:
            argv += ["--device", "cuda:0", "--dtype", "bfloat16"]
        return Command(tuple(argv), url, environment | launch.visible_gpus)


KIND = TransformersServer
