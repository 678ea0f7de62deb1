"""The model that a run starts from: built in place, a demo model, or given; published as version 0."""

import json
import os
import shutil
from pathlib import Path

from dart_agent.models.families.family_table import family_in
from dart_agent.models.image_patches import VisionSpec, image_settings
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.errors import ConfigurationError
from dart_gym.utils.durable_files import make_directories, publish_directory
from dart_train.core.demo_models import DEMO_MODELS, demo_model
from dart_train.core.digests import write_digests
from dart_train.processes.process_context import ProcessContext
from dart_train.run.run_directory import RunDirectoryError

OWN_TRAINER = "dart_grpo"


def main(context: ProcessContext) -> None:
    """Publish version 0, once.

    Raises:
        ConfigurationError: if our trainer does not support the model's family.
    """
    target = context.run.checkpoint(0)
    if not target.exists():
        model, agent = context.config.model, context.config.agent
        if context.config.trainer.kind == OWN_TRAINER and (Path(model.path) / "config.json").is_file():
            family_in(model.path)  # a trainer of the user's may know others
        pixels = {"min_pixels": agent.min_pixels, "max_pixels": agent.max_pixels}
        place_model(model.path, model.tiny, target, seed=context.config.seed, pixels=pixels)
    with context.open_data() as data:
        if data.newest_checkpoint() is None:
            data.publish(0, target, source="initial")


def place_model(
    path: str, tiny: dict[str, object], target: Path, *, seed: int, pixels: dict[str, int | None] | None = None
) -> None:
    """Put a model directory at `target`, whole or not at all. Raises `RunDirectoryError`, `ConfigurationError`."""
    make_directories(target.parent)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    if path == "tiny":
        from dart_agent.models.tiny_model import build_tiny_model, config_from_values

        build_tiny_model(temporary, seed=seed, config=config_from_values(tiny))
    elif path in DEMO_MODELS:
        shutil.copytree(demo_model(path), temporary)
    elif (Path(path) / "config.json").exists():
        temporary.mkdir()
        for file in Path(path).resolve().iterdir():
            (temporary / file.name).symlink_to(file)
    else:
        known = ", ".join(["tiny", *DEMO_MODELS])
        raise RunDirectoryError(f"no model {path!r}: give a directory with a config.json, or one of {known}")
    try:
        limit_pixels(temporary, pixels or {})
        ModelTokens.load(temporary)
        write_digests(temporary)
    except BaseException:
        shutil.rmtree(temporary)
        raise
    publish_directory(temporary, target)


def limit_pixels(model_dir: Path, pixels: dict[str, int | None]) -> None:
    """Give a model's image processor other bounds. Engines, trainer and later versions all read them from there."""
    chosen = {name: value for name, value in pixels.items() if value is not None}
    spec = VisionSpec.from_dir(model_dir)
    least, most = chosen.get("min_pixels", spec.min_pixels), chosen.get("max_pixels", spec.max_pixels)
    if least > most:
        raise ConfigurationError(f"agent.min_pixels = {least} is above agent.max_pixels = {most}; lower it")
    if not chosen:
        return
    settings = {**image_settings(model_dir), "min_pixels": least, "max_pixels": most}
    settings["size"] = {"shortest_edge": least, "longest_edge": most}
    path = model_dir / "preprocessor_config.json"
    path.unlink(missing_ok=True)  # a link to the user's own file
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
