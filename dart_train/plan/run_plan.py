"""A run's memory, disk and time from its configuration. Pure; no torch, nothing is loaded.

What is not in a configuration is an assumption with a name (`Assumed`), printed beside what follows from it.

Invariant: what is said not to fit does not fit by the parts that are certain (weights, gradients, moments, the
reference, the engines' weights), whatever is assumed; what depends on assumptions is advice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dart_agent.engines.vllm.adapter_names import KEPT_ADAPTERS
from dart_train.config.run_config import RunConfig
from dart_train.data.curation.rollout_admission import idle_workers
from dart_train.placement.placement import OUR_TRAINER, Demand, demand, too_few
from dart_train.plan.step_passes import Assumed, Pass, forward, passes, row_lengths
from dart_train.rollout.settings.rollout_config import SCHEDULERS
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import RankMemory, Setting, Work, moments_of, rank_memory, usable_bytes
from dart_train.trainer.memory.step_memory import in_units, listed, remedies
from dart_train.trainer.settings.grpo_settings import STATES_KEPT

PROCESS_BYTES = 700 << 20
"""What a process takes that has loaded torch and transformers and no model."""
TOKEN_PIXELS = 28**2
"""Pixels that one token of a screenshot stands for."""


MOST_TOKENS = 1 << 30
"""Tokens beyond which nobody looks for how long a row may be."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is.

    Attributes:
        gpus: of trainer and engines together; 0 trains on the CPU.
        flops: operations a second of each at most, dense in bfloat16; None where nobody knows.
        mfu: share of them that training reaches.
        host_bytes: memory of the machine; None where nobody knows.
    """

    gpus: int = 0
    gpu_bytes: int = 0
    flops: float | None = None
    mfu: float = 0.4
    host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One replica, with bytes of its cache (None: not bounded by a GPU), in all, of a token, and of any request."""

    weights: int
    cache: int | None
    token: int
    memory: int
    request: int
    gpus: int
    replicas: int

    @property
    def requests(self) -> int | None:
        """How many requests of the longest kind it holds at the same time."""
        return None if self.cache is None else max(self.cache // (self.token * self.request + self.memory), 0)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run.

    Attributes:
        room: bytes that each has; None where nobody knows.
        sharing: ranks that share each row.
        longest_row: tokens of the longest row that fits into the room, beside the rest; None where nobody knows.
        engines_s: seconds in which the engines read the prompts of a lease; 0 where that is not known.
        host: bytes of the machine's memory, by cause.
        disk: bytes of an hour, by cause.
        passes: those of the optimizer steps on a lease, with their operations.
        speed: operations a second of all ranks; None where that is not known.
    """

    ranks: int
    rank: RankMemory
    room: int | None
    sharing: int
    longest_row: int | None
    setting: Setting
    engine: EnginePlan
    engines_s: float
    host: Mapping[str, int]
    disk: Mapping[str, int]
    passes: tuple[Pass, ...]
    speed: float | None
    rollout_s: float
    refusals: tuple[str, ...]
    changes: tuple[str, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each pass over a lease; empty where operations a second are not known."""
        return {one.name: one.flops / self.speed for one in self.passes} if self.speed else {}

    @property
    def waits(self) -> str:
        """Return what waits for what."""
        step, played = sum(self.seconds.values()), max(self.rollout_s, self.engines_s)
        if not step:
            return "how long a step takes is not known here, so neither is who waits"
        if step < played:
            slowest = "engines" if self.engines_s > self.rollout_s else "desktops"
            return f"the trainer waits {1 - step / played:.0%} of the time for rollouts, which wait for {slowest}"
        return f"rollouts wait {1 - played / step:.0%} of the time for the trainer, where they may not run ahead"


def plan(config: RunConfig, size: ModelSize, machine: Machine, assumed: Assumed) -> RunPlan:
    """Work out a run."""
    wanted = demand(config, machine.gpus)
    engine = _engine(config, size, machine, assumed)
    ranks = wanted.ranks
    setting = rank_setting(config, wanted.ranks)
    sharing = config.trainer.context_parallel if setting.sharded else 1
    work = _work(config, size, assumed, ranks, sharing)
    memory = rank_memory(size, setting, work)
    room = _room(wanted, machine)
    usable = usable_bytes(room, ranks) if room is not None and wanted.trainer_gpus else room
    lease = passes(config, size, setting, assumed, work.responses)
    speed = ranks * machine.flops * machine.mfu if machine.flops else None
    seconds = sum(one.flops for one in lease) / speed if speed else 0.0
    reading = engine.replicas * engine.gpus * float(machine.flops or 0) * machine.mfu
    trajectories = config.trainer.groups_per_step * config.rollout.group_size
    rollout_s = trajectories * assumed.steps * assumed.step_s / config.rollout.workers
    host = _host(config, size, memory, machine, ranks, assumed)
    return RunPlan(
        ranks=ranks,
        rank=memory,
        room=room,
        sharing=sharing,
        longest_row=None if usable is None else sharing * most_tokens(size, setting, work, usable),
        setting=setting,
        engine=engine,
        engines_s=sum(forward(config, size, assumed)) / reading if reading else 0.0,
        host=host,
        disk=_disk(config, size, assumed, max(seconds, rollout_s)),
        passes=lease,
        speed=speed,
        rollout_s=rollout_s,
        refusals=tuple(refusals(config, size, machine)),
        changes=tuple(_changes(config, memory, room, setting, engine, host, machine)),
    )


def _work(config: RunConfig, size: ModelSize, assumed: Assumed, ranks: int, sharing: int) -> Work:
    """Return the largest share of a step that a rank has; ranks that share rows have an equal part of each."""
    rows = row_lengths(config, assumed)
    own = max(config.trainer.groups_per_step * config.rollout.group_size * sharing // ranks, 1)
    tokens = config.trainer.micro_batch_tokens
    responses = assumed.response * max(tokens // max(rows), 1) * config.agent.screenshots
    return Work(
        tokens=-(-max(*rows, min(tokens, own * sum(rows))) // sharing),
        responses=-(-responses // sharing),
        images=-(-own * assumed.steps // sharing),
        image_patches=assumed.image_tokens * size.merge**2,
        recurring=config.agent.screenshots > 1 or config.trainer.top_entropy_quantile < 1,
    )


def most_tokens(size: ModelSize, setting: Setting, work: Work, room: int) -> int:
    """Return the most tokens of a micro-batch with which a rank fits into its room; 0 where it never does."""
    low, high = 0, MOST_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if rank_memory(size, setting, replace(work, tokens=middle)).peak <= room:
            low = middle
        else:
            high = middle - 1
    return low


def rank_setting(config: RunConfig, ranks: int) -> Setting:
    """How each rank of a run trains."""
    trainer = config.trainer
    return Setting(
        ranks=ranks,
        sharded=bool(trainer.fsdp) and ranks > 1,
        half=trainer.bf16 or trainer.fp16,
        checkpointing=bool(trainer.gradient_checkpointing),
        offload_optimizer=trainer.offload_optimizer,
        offload_activations=trainer.offload_activations,
        trains_tower=not (trainer.freeze_vision or trainer.use_peft),
        lora_rank=trainer.lora_r if trainer.use_peft else 0,
        half_base=trainer.frozen_dtype != "float32",
        reference=trainer.beta > 0 and not trainer.use_peft,
        moments=moments_of(trainer.optim or "adamw"),
        features_bytes=trainer.image_features_mb << 20,
    )


def refusals(config: RunConfig, size: ModelSize, machine: Machine) -> list[str]:
    """Why a run cannot fit, by what is certain of it; empty where it may."""
    wanted = demand(config, machine.gpus)
    if wanted.gpus > machine.gpus:
        return [too_few(wanted, machine.gpus)]
    engine, setting = _engine(config, size, machine, Assumed()), rank_setting(config, wanted.ranks)
    found: list[str] = []
    least = rank_memory(size, setting, Work(1, 1))
    held = dict(least.held) | {"optimizer": least.held["optimizer"] + least.moments_on_host}  # back for its step
    room = _room(wanted, machine)
    if room is not None and sum(held.values()) > room:
        found.append(
            f"each of {wanted.ranks} ranks holds {in_units(sum(held.values()))} before the first token, and there are "
            f"{in_units(room)}: {listed(held)}. {remedies(held, setting)}"
        )
    if config.warmup.limited and config.trainer.kind == OUR_TRAINER:
        several = wanted.warmup_ranks
        # Gradients meet after each backward pass, and transformers' optimizer is AdamW.
        warming = replace(setting, ranks=several, sharded=several > 1, reference=False, moments=8, reduce_once=False)
        warm = rank_memory(size, warming, Work(1, 1)).held
        whole = machine.gpu_bytes if wanted.trainer_gpus else machine.host_bytes
        if whole is not None and sum(warm.values()) > whole:
            who = f"each of {several} ranks of the warm-up" if several > 1 else "the warm-up is one process, which"
            remedy = "Take more ranks, set trainer.use_peft: true" if several > 1 else "Set trainer.use_peft: true"
            found.append(
                f"{who} holds {in_units(sum(warm.values()))} before the first token, and there are "
                f"{in_units(whole)}: {listed(warm)}. {remedy}, or leave the warm-up out (warmup.max_steps: 0) and "
                "begin from a model that was fine-tuned elsewhere"
            )
    if engine.cache is not None and engine.cache <= 0:
        found.append(
            f"an engine's weights are {in_units(engine.weights)} on {engine.gpus} GPUs of "
            f"{in_units(machine.gpu_bytes)}: raise resources.engine_memory, or give each replica "
            "more in resources.engine_gpus"
        )
    return found


def _engine(config: RunConfig, size: ModelSize, machine: Machine, assumed: Assumed) -> EnginePlan:
    """One replica; ours computes in float32 on the CPU, vLLM in bfloat16 on its GPUs."""
    token_numbers = 2 * size.attending * size.keys_width
    request = assumed.prompt + config.agent.screenshots * assumed.image_tokens
    request += config.agent.texts * min(assumed.response, config.rollout.sampling.max_tokens)
    request += config.rollout.sampling.max_tokens
    section, wanted = config.rollout.engine, demand(config, machine.gpus)
    if not wanted.engine_gpus:
        number = 4 if section.kind == "transformers" and not section.urls else 2
        return EnginePlan(
            number * size.total, None, number * token_numbers, 4 * size.memory, request, 0, wanted.replicas
        )
    weights, taken = 2 * size.total, int(wanted.engine_memory * wanted.engine_gpus * machine.gpu_bytes)
    if config.rollout.sync.transfer == "adapter":  # vLLM's places for them, filled or not
        weights += KEPT_ADAPTERS * 2 * size.adapter(config.trainer.lora_r)
    return EnginePlan(
        weights, taken - weights, 2 * token_numbers, 4 * size.memory, request, wanted.engine_gpus, wanted.replicas
    )


def _room(wanted: Demand, machine: Machine) -> int | None:
    """Bytes that each rank may take; None where nobody knows."""
    return int(machine.gpu_bytes * wanted.trainer_memory) if wanted.trainer_gpus else machine.host_bytes


def _host(
    config: RunConfig, size: ModelSize, memory: RankMemory, machine: Machine, ranks: int, assumed: Assumed
) -> dict[str, int]:
    """Memory of the machine by cause, desktops left out."""
    engine = config.rollout.engine
    wanted = demand(config, machine.gpus)
    on_cpu = 0 if wanted.engine_gpus else (2 if engine.kind == "vllm" else 4) * size.total
    shown = config.agent.screenshots * assumed.image_tokens * TOKEN_PIXELS * 3
    found = {
        "trainer": 0 if wanted.trainer_gpus else ranks * memory.peak,
        "trainer's processes and screenshots": ranks * (PROCESS_BYTES + (2 * config.trainer.image_cache_mb << 20)),
        "engines": wanted.replicas * (PROCESS_BYTES + on_cpu),
        "a version on its way to the disk": _version(config, size),
        "moments of the optimizer": ranks * memory.moments_on_host,
        "activations on the host": ranks * memory.activations_on_host,
        "a state on its way to the disk": _state(config, size) if config.trainer.background_states else 0,
        "rollout service": PROCESS_BYTES + (config.rollout.max_unrecorded_mb << 20),
        "screenshots of running episodes": config.rollout.workers * (shown + assumed.steps * assumed.screenshot_bytes),
    }
    return {name: value for name, value in found.items() if value}


def _disk(config: RunConfig, size: ModelSize, assumed: Assumed, step_s: float) -> dict[str, int]:
    """Bytes of an hour of training, by cause; of versions and states those that are kept at the same time, at most."""
    steps = 3600 / max(step_s, 1e-9)
    trainer = config.trainer
    episodes = steps * trainer.groups_per_step * config.rollout.group_size
    return {
        "screenshots": int(episodes * assumed.steps * assumed.screenshot_bytes),
        **_kept(config, size),
    }


def certain_disk(config: RunConfig, size: ModelSize) -> int:
    """Return the bytes that a run keeps at the same time: versions, states, and one that is being written."""
    kept = _kept(config, size)
    return sum(kept.values())


def _state(config: RunConfig, size: ModelSize) -> int:
    """Bytes of a state that training resumes from, of all ranks together."""
    trainer = config.trainer
    trained = size.adapter(trainer.lora_r) if trainer.use_peft else size.total
    return (4 + moments_of(trainer.optim or "adamw")) * trained


def _version(config: RunConfig, size: ModelSize) -> int:
    """Bytes of a version that training publishes: all weights, or the adapter alone."""
    alone = config.rollout.sync.transfer == "adapter"
    return size.stored * (size.adapter(config.trainer.lora_r) if alone else size.total)


def _kept(config: RunConfig, size: ModelSize) -> dict[str, int]:
    trainer = config.trainer
    state = _state(config, size)
    whole, version = size.stored * size.total, _version(config, size)
    warm = 1 if config.warmup.limited else 0
    best = 1 if config.evaluation.monitor.every_rollouts or config.evaluation.final == "best" else 0
    control = 1 if config.controls.supervised else 0
    return {
        # One more while it is written: the oldest goes when the newest is whole.
        "versions kept": (trainer.keep_published + 1 + best) * version + (warm + control) * whole,
        "states kept": (STATES_KEPT + 1) * state,
    }


def _changes(
    config: RunConfig,
    memory: RankMemory,
    room: int | None,
    setting: Setting,
    engine: EnginePlan,
    host: Mapping[str, int],
    machine: Machine,
) -> list[str]:
    """Return what would make a run fit, or faster."""
    rollout = config.rollout
    idle = idle_workers(rollout.workers, rollout.group_size, config.data.curation)
    found = [idle] if idle and not SCHEDULERS.get(rollout.mode).waits_for_batches else []
    if room is not None and memory.peak > room:
        found.append(remedies(memory.causes, setting))
    requests = engine.requests
    slots = None if requests is None else requests * engine.replicas
    if slots is not None and slots < rollout.workers:
        found.append(
            f"engines hold {slots} requests at once and rollout.workers is {rollout.workers}: the others wait; "
            "more replicas or GPUs, or fewer screenshots"
        )
    if machine.host_bytes is not None and sum(host.values()) > machine.host_bytes:
        found.append(
            f"the machine's memory: {in_units(sum(host.values()))} of {in_units(machine.host_bytes)}; put engines "
            "elsewhere, or set trainer.image_cache_mb lower"
        )
    return found
