"""EngineKind: how one connects to a kind of engine, how one starts a server of it, and which options it has.

A kind is a section of a run's configuration: its fields are `rollout.engine.options`, checked like the rest. Kinds are
named as `dart_agent.engines.engine_kinds` says.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from dart_agent.engines.base.engine import ModelEngine
from dart_gym.core.section import Section

Transfer = Literal["files", "memory", "nccl", "tcp", "adapter"]
"""How new weights get into a server; see `SyncConfig` of the rollout service."""


def gpu_environment(gpus: Iterable[int]) -> dict[str, str]:
    """Variables that show a process just these GPUs, by their indices in the order of the bus, as `nvidia-smi` has."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}


REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Connection:
    """Parameters of a client.

    Attributes:
        name: what results carry as `Generation.engine`; "" for the URL.
        version: version of the weights that the server was started with; -1 if it is unknown.
        pause: what an update does to requests that still run: freeze them ("keep") or cut them off ("abort").
        loading: how weights are streamed into the server (`dart_agent.engines.vllm.weight_loading.WeightLoading`); None
            for a server that reads files.
        adapters: whether new weights are LoRA adapters beside the server's own weights.
    """

    url: str
    model_dir: str | Path
    name: str = ""
    version: int = 0
    request_timeout_s: float = REQUEST_TIMEOUT_S
    update_timeout_s: float = 600.0
    pause: Literal["keep", "abort"] = "keep"
    loading: Any = None
    adapters: bool = False


@dataclass(frozen=True, slots=True)
class Public:
    """An address that other nodes reach: by TLS, with the token in `DART_ENGINE_TOKEN` alone.

    Attributes:
        host: address of this node.
        port: a free one.
        certificate: PEM file, for `host`.
        key: PEM file of its key.
    """

    host: str
    port: int
    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Parameters of a server that is started.

    Attributes:
        name: name of the replica, unique among those that are started together.
        path: directory of the model.
        directory: directory for sockets and temporary files; a short path, removed at the end.
        images: most screenshots of a prompt.
        transfer: how new weights will get into the server.
        lora_rank: rank of the adapters that `transfer` "adapter" brings.
        lora_target_modules: layers that they are for, in peft's way: endings of names, or one regular expression for
            whole names; None for what the family of the model adapts.
        gpus: indices of its GPUs in the order of the bus; None if none were assigned, empty for the CPU.
        gpu_memory: share of their memory that it takes; None for its own default.
        public: where other nodes reach it; None for a server for this machine alone.
    """

    name: str
    index: int
    path: str
    version: int
    directory: Path
    images: int = 5
    transfer: Transfer = "files"
    lora_rank: int = 0
    lora_target_modules: tuple[str, ...] | None = None
    gpus: tuple[int, ...] | None = None
    gpu_memory: float | None = None
    public: Public | None = None

    @property
    def visible_gpus(self) -> dict[str, str]:
        """Return variables that show a server only its own GPUs; empty if none were assigned."""
        return {} if self.gpus is None else gpu_environment(self.gpus)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that starts a server, and the address where the server then listens.

    Attributes:
        has_workers: whether it starts processes of its own, which would survive if it were killed. Such a command gets
            SIGTERM when its owner dies; any other is killed, so that it also ends when it hangs.
    """

    argv: tuple[str, ...]
    url: str
    environment: dict[str, str] = field(default_factory=dict)
    has_workers: bool = False


class EngineKind(Section, ABC):
    """Base of the kinds; its fields are the options.

    Attributes:
        schemes: schemes of the URLs of its servers, such as "http".
        transfers: how new weights can get into its servers.
        drains: whether an update cuts off requests that still run, so that they are better let end before it.
        computes_on_gpus: whether a server takes a GPU where there is one and nobody says otherwise.
    """

    schemes: ClassVar[tuple[str, ...]] = ()
    transfers: ClassVar[tuple[Transfer, ...]] = ("files",)
    drains: ClassVar[bool] = False
    computes_on_gpus: ClassVar[bool] = False

    @property
    def reports_routing(self) -> bool:
        """Return whether servers report which experts of a mixture computed each token (`Sampling.routing`)."""
        return False

    @abstractmethod
    def connect(self, connection: Connection) -> ModelEngine:
        """The client of a server; its first call connects."""

    @abstractmethod
    def command(self, launch: Launch) -> Command:
        """Return what starts a server; nothing is started here."""
