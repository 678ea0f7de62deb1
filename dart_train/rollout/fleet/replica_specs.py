"""The replicas that a configuration asks for, and who sends them weights. Nothing is started here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dart_agent.engines.vllm.weight_sender import WeightSender
from dart_train.rollout.fleet.replica import ReplicaSpec
from dart_train.rollout.fleet.server_programs import Program
from dart_train.rollout.settings.rollout_config import EngineConfig, SyncConfig


def replica_specs(
    config: EngineConfig,
    directory: Path,
    log_dir: str | Path | None,
    program: tuple[str, ...],
    sync: SyncConfig = SyncConfig(),
) -> list[ReplicaSpec]:
    """What to start or to connect to.

    Args:
        config: the engines' part of the rollout's.
        directory: of the sockets of those that are started.
        log_dir: of their logs; None for none.
        program: our engine server.
        sync: how weights get into vLLM servers.
    """
    if config.urls:
        elsewhere = Program(kind="vllm", model=config.model)
        return [_spec(config, f"r{index}", url, elsewhere, owned=False) for index, url in enumerate(config.urls)]
    if config.kind == "vllm":
        theirs = _vllm_program(config, sync, directory)
        gpus = config.vllm.gpus or ("",) * config.replicas
        specs = [
            _spec(config, f"r{index}", "", replace(theirs, gpus=chosen), owned=True)
            for index, chosen in enumerate(gpus)
        ]
    else:
        ours = Program(argv=program, threads=config.threads, max_batch=config.max_batch)
        specs = [
            _spec(config, f"r{index}", f"ws+unix://{directory / f'engine-{index}.sock'}", ours, owned=True)
            for index in range(config.replicas)
        ]
    logs = Path(log_dir) if log_dir else None
    return [replace(spec, log=logs and logs / f"engine-{index}.log") for index, spec in enumerate(specs)]


def weight_sender(sync: SyncConfig, log_dir: str | Path | None) -> WeightSender | None:
    """The process that streams weights, not started yet; None where replicas read them."""
    if sync.transfer not in ("nccl", "tcp"):
        return None
    return WeightSender(
        sync.transfer,
        python=sync.python,
        device=sync.device,
        address=sync.address,
        buffer_bytes=int(sync.buffer_mib * 2**20),
        log=Path(log_dir) / "sender.log" if log_dir else None,
    )


def _spec(config: EngineConfig, name: str, url: str, program: Program, *, owned: bool) -> ReplicaSpec:
    return ReplicaSpec(
        name=name,
        url=url,
        owned=owned,
        program=program,
        request_timeout_s=config.request_timeout_s,
        update_timeout_s=config.start_timeout_s,
        least_requests=config.least_requests,
        most_requests=config.most_requests,
        pause="keep" if config.update == "keep" else "abort",
    )


def _vllm_program(config: EngineConfig, sync: SyncConfig, directory: Path) -> Program:
    settings = config.vllm
    place = {"TMPDIR": str(directory)}  # else the sockets and files of a server that is killed stay in /tmp
    return Program(
        kind="vllm",
        argv=settings.program,
        model=config.model,
        options=settings.options,
        environment={**place, **settings.environment},
        images=settings.images,
        max_length=settings.max_length,
        transfer=sync.transfer,
        lora_rank=sync.lora_rank,
    )
