"""Command lines of the engine servers that the rollout service starts. Pure, but for the choice of a free port.

Invariants:
    - A server listens on a Unix socket or on loopback: its steering routes have no key.
    - What training needs of a vLLM server (token ids as they are, log-probabilities of what was sampled from, no
      settings out of the model's own file, weight updates) is always asked for; `options` come last and win.
"""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import dataclass, field
from typing import Literal

from dart_agent.engines.vllm.vllm_adapters import KEPT
from dart_agent.engines.weight_stream import DIRECTORY, RECEIVER, TCP_BACKEND
from dart_gym.utils.plugins import child_environment
from dart_train.rollout.fleet.weight_files import Weights

ENGINE_PROGRAM = (sys.executable, "-m", "dart_agent.engines.remote.engine_server")


@dataclass(frozen=True, slots=True)
class Command:
    """What starts a server, and where it then listens.

    Attributes:
        argv: the command.
        environment: variables besides our own.
        url: its address.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]
    url: str


@dataclass(frozen=True, slots=True)
class Program:
    """How servers of one replica are started.

    Attributes:
        kind: whose server it is.
        argv: what is started; for "transformers" it takes the arguments of `dart_agent.engines.remote.engine_server`.
        threads: torch threads.
        max_batch: requests in one forward pass.
        model: what a vLLM server calls the model.
        options: more of its command line.
        environment: more variables.
        gpus: comma-separated; "" for all.
        images: most images of a prompt.
        max_length: most tokens of a prompt and its response.
        transfer: how a vLLM server gets weights; see `SyncConfig`.
        lora_rank: largest rank of adapters, where they are the way.
    """

    kind: Literal["transformers", "vllm"] = "transformers"
    argv: tuple[str, ...] = ENGINE_PROGRAM
    threads: int = 1
    max_batch: int = 32
    model: str = "policy"
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    gpus: str = ""
    images: int = 5
    max_length: int = 32768
    transfer: Literal["files", "lora", "nccl", "tcp"] = "files"
    lora_rank: int = 16


def command_of(program: Program, name: str, url: str, weights: Weights) -> Command:
    """What starts a replica.

    Args:
        program: how.
        name: of the replica.
        url: where ours listens; a vLLM server gets a free port of loopback.
        weights: what it loads.
    """
    if program.kind == "vllm":
        return _vllm(program, weights, free_port())
    argv = [*program.argv, "--model", weights.path, "--listen", url, "--name", name]
    argv += ["--threads", str(program.threads), "--max-batch", str(program.max_batch)]
    argv += ["--version", str(weights.version)]
    environment = {"OMP_NUM_THREADS": str(program.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    environment["TOKENIZERS_PARALLELISM"] = "false"
    return Command(tuple(argv), {**environment, **program.environment}, url)


def _vllm(program: Program, weights: Weights, port: int) -> Command:
    limits = json.dumps({"image": program.images, "video": 0})
    argv = [*program.argv, "serve", weights.model, "--served-model-name", program.model]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    argv += ["--limit-mm-per-prompt", limits, "--max-model-len", str(program.max_length)]
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # its own processes talk on loopback, too
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",  # it has an environment of its own, and finds nothing of ours
    }
    if program.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = program.gpus
        argv += ["--tensor-parallel-size", str(len(program.gpus.split(",")))]
    match program.transfer:
        case "lora":
            argv += ["--enable-lora", "--max-lora-rank", str(program.lora_rank), "--max-loras", str(KEPT + 1)]
        case "nccl":
            argv += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
        case "tcp":
            argv += ["--weight-transfer-config", json.dumps({"backend": TCP_BACKEND})]
            argv += ["--worker-extension-cls", RECEIVER]
            environment["PYTHONPATH"] = str(DIRECTORY)  # the receiver, and nothing else of ours
    return Command((*argv, *program.options), {**environment, **program.environment}, f"http://127.0.0.1:{port}")


def free_port() -> int:
    """A port that nobody has at this moment; a server that loses it to somebody else ends and is started again."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def full_environment(command: Command) -> dict[str, str]:
    """Ours and the command's."""
    return child_environment() | command.environment
