"""The machine and the model that a run is planned for: what this one has, as far as it can be asked without torch."""

import tempfile
from pathlib import Path

import psutil

from dart_agent.models.image_patches import VisionSpec
from dart_train.config.run_config import ConfigError, RunConfig
from dart_train.core.demo_models import DEMO_MODELS, model_place
from dart_train.core.device_peaks import peak_flops
from dart_train.placement.gpu_discovery import gpus_here
from dart_train.plan.run_plan import Machine
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.published_models import PUBLISHED


def this_machine() -> Machine:
    """Return what there is here: the GPUs that a run may use, and the memory."""
    host, found = psutil.virtual_memory().total, gpus_here()
    if not found:
        return Machine(host_bytes=host)
    smallest = min(gpu.memory_mb for gpu in found) << 20
    return Machine(len(found), smallest, peak_flops(found[0].name), host_bytes=host)


def model_size(path: str, model: str | None = None) -> ModelSize:
    """Return the size of a run's model, or of a published model named `model`.

    Raises:
        ConfigError: if there is no such model here.
    """
    if model is not None:
        if model not in PUBLISHED:
            raise ConfigError(f"--model {model!r} is unknown; published sizes are {', '.join(PUBLISHED)}")
        return ModelSize.published(model)
    if path == "tiny":
        from dart_agent.models.tiny_model import build_tiny_model  # loads torch

        with tempfile.TemporaryDirectory() as scratch:
            return ModelSize.of_directory(build_tiny_model(scratch))
    if not (model_place(path) / "config.json").is_file():
        raise ConfigError(
            f"model.path: no model {path} on this machine; to plan without it name its size: --model "
            f"{' or '.join(PUBLISHED)}"
        )
    return ModelSize.of_directory(model_place(path))


def is_here(path: str) -> bool:
    """Return whether a run's model is on this machine, is built, or is a demo model."""
    return path == "tiny" or path in DEMO_MODELS or (Path(path) / "config.json").is_file()


def image_tokens(config: RunConfig, width: int, height: int) -> int:
    """Tokens of a screenshot, by the model's processor where it is here."""
    path = Path(config.model.path)
    here = (path / "preprocessor_config.json").is_file()
    spec = VisionSpec.from_dir(path) if here else VisionSpec(max_pixels=config.agent.max_pixels or 12_845_056)
    rows, columns = spec.resized(height, width)
    return rows * columns // spec.factor**2
