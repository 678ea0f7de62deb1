"""`dart-train plan`: work out whether a run fits, what it takes, and which part waits for which."""

from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console

from dart_gym.commands.json_output import JsonOption, write_json
from dart_train.commands.options import DEFAULT_RUNS_DIR, ConfigPath, Overrides, load
from dart_train.config.run_config import ConfigError

_MODEL_HELP = "a published size where the model is not here: Qwen2.5-VL's 3b or 7b, qwen3-vl-30b-a3b, qwen3.5-35b-a3b"


def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of the run; those of this machine if not given")] = None,
    gpu_memory: Annotated[float | None, typer.Option(min=1, help="GB of memory of each GPU, such as 80")] = None,
    gpu: Annotated[str | None, typer.Option(help="H200, H100, A100, L40S, or RTX 4090; for the time of a step")] = None,
    mfu: Annotated[float, typer.Option(min=0.01, max=1, help="share of the GPU's peak that training reaches")] = 0.4,
    host_memory: Annotated[float | None, typer.Option(min=1, help="GB of the machine's memory")] = None,
    model: Annotated[str | None, typer.Option(help=_MODEL_HELP)] = None,
    steps: Annotated[int, typer.Option(min=1, help="of an episode")] = 15,
    response: Annotated[int, typer.Option(min=1, help="tokens of a response")] = 110,
    screen: Annotated[str, typer.Option(metavar="WxH", help="size of screenshots")] = "1920x1080",
    step_seconds: Annotated[float, typer.Option(min=0.01, help="of a step: desktop and model")] = 6.0,
    json_file: JsonOption = None,
) -> None:
    """Check CONFIG and work out its memory, disk and time, without loading a model; status 1 where it cannot run."""
    from dart_train.core.device_peaks import peak_flops
    from dart_train.plan.plan_machine import image_tokens, is_here, model_size, this_machine
    from dart_train.plan.plan_tables import as_values, shown
    from dart_train.plan.run_plan import plan as work_out
    from dart_train.plan.step_passes import Assumed
    from dart_train.preflight.problems import refuse
    from dart_train.preflight.run_check import check_elsewhere, check_run
    from dart_train.trainer.memory.published_models import PUBLISHED

    loaded = load(config, overrides, None)
    elsewhere = any(value is not None for value in (gpus, gpu_memory, host_memory, model))
    size = model_size(loaded.model.path, model) if model is not None or is_here(loaded.model.path) else None
    checked = (
        check_elsewhere(loaded, model_here=model is None, stores=False)
        if elsewhere
        else check_run(loaded, DEFAULT_RUNS_DIR)
    )
    if size is None:
        refuse([*checked.problems, f"to plan without the model here, name its size: --model {' or '.join(PUBLISHED)}"])
        return
    machine = this_machine()
    if gpus is not None:
        machine = replace(machine, gpus=gpus, host_bytes=None)  # plan for another machine than this one
    if gpu_memory is not None:
        machine = replace(machine, gpu_bytes=int(gpu_memory * 1e9))
    if machine.gpus and not machine.gpu_bytes:
        raise ConfigError("--gpus needs --gpu-memory: how much each has, such as 80")
    if gpus == 0 and host_memory is None:
        raise ConfigError("--gpus 0 needs --host-memory: training on the CPU takes the machine's")
    if host_memory is not None:
        machine = replace(machine, host_bytes=int(host_memory * 1e9))
    if gpu is not None:
        machine = replace(machine, flops=peak_flops(gpu))
    width, _, height = screen.partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise ConfigError(f"--screen {screen!r} is not WxH, such as 1920x1080")
    tokens = image_tokens(loaded, int(width), int(height))
    assumed = Assumed(steps, min(response, loaded.rollout.sampling.max_tokens), tokens, step_seconds)
    found = work_out(loaded, size, replace(machine, mfu=mfu), assumed)
    Console().print(shown(found, replace(machine, mfu=mfu), assumed))
    write_json(json_file, as_values(found))
    refuse(problem for problem in checked.problems if problem not in found.refusals)
    if found.refusals or (found.room is not None and found.rank.peak > found.room):
        raise typer.Exit(1)
