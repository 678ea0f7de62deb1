"""`dart-train check-gpu`: check whether this machine's GPUs compute what a run needs, and how fast."""

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_gym.commands.json_output import JsonOption, write_json
from dart_gym.core.suggestions import suggest
from dart_train.core.train_errors import TrainingError


def check_gpu(
    model: Annotated[
        Path | None,
        typer.Option(help="directory of the checkpoint to check; a tiny model if not given"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; cuda if there is a GPU")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="number of GPUs to check; all if not given")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="run this check only; repeat for more")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="directory on the disk that runs use; a temporary one if not given")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Check this machine's GPUs with the code of a run, in about ten minutes and without a configuration.

    The exit status is 1 if a check computes wrong numbers or does not run.
    """
    from dart_agent.engines.vllm import vllm_environment
    from dart_train.gpu_check.check_list import CHECKS, chosen, reason_to_skip
    from dart_train.gpu_check.check_process import run_check
    from dart_train.gpu_check.check_setting import CheckSetting
    from dart_train.gpu_check.gpu_report import as_values, outcome_table
    from dart_train.gpu_check.outcome import Outcome, Status, verdict

    try:
        checks = chosen(only)
    except KeyError as error:
        names = [check.name for check in CHECKS]
        raise TrainingError(f"--only {error.args[0]!r} is not a check; {suggest(error.args[0], names)}") from None
    here, devices = _devices(device, gpus)
    console, started = Console(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dart-check-gpu-", dir=scratch) as place:
        setting = CheckSetting(
            device=here,
            devices=devices,
            model_dir=model.absolute() if model else _tiny_model(Path(place) / "model"),
            own_model=model is not None,
            scratch=Path(place),
            vllm=not vllm_environment.problem(),
        )
        outcomes: list[Outcome] = []
        for check in checks:
            reason = reason_to_skip(check, setting)
            if reason is not None:
                outcomes.append(Outcome(check.name, Status.SKIPPED, reason))
                continue
            with console.status(f"{check.name} (at most {check.limit_s:.0f} s)"):
                outcomes += run_check(check, setting)
    console.print(outcome_table(outcomes))
    ready, sentence = verdict(outcomes)
    console.print(f"\n{sentence}", style="green" if ready else "bold red", highlight=False)
    write_json(json_file, as_values(outcomes, time.monotonic() - started))
    if not ready:
        raise typer.Exit(1)


def _devices(device: str | None, gpus: int | None) -> tuple[str, int]:
    """Return the kind of device and the number of devices to check.

    Raises:
        TrainingError: if the named device is missing, or there are fewer GPUs than asked for.
    """
    import torch

    if device not in (None, "cuda", "cpu"):
        raise TrainingError(f"--device {device!r}: choose cuda or cpu")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device is None and not found):
        return "cpu", gpus or 2
    if not found:
        raise TrainingError(
            f"torch {torch.__version__} finds no GPU. Is the driver loaded (nvidia-smi), and is this torch built for "
            f"CUDA ({torch.version.cuda or 'this one is not'})?"
        )
    if gpus is not None and gpus > found:
        raise TrainingError(f"--gpus {gpus}: torch finds {found}; is CUDA_VISIBLE_DEVICES set?")
    return "cuda", gpus or found


def _tiny_model(directory: Path) -> Path:
    """Build the checkpoint that is checked if no other is named."""
    from transformers.utils.logging import disable_progress_bar

    from dart_agent.models.tiny_model import build_tiny_model

    disable_progress_bar()  # for writing half a million weights
    return build_tiny_model(directory)
