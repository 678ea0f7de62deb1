"""The model that a run starts from: built in place, shipped, or given; published as version 0."""

from __future__ import annotations

import os
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from dart_train.commands.context import ModuleContext
from dart_train.rundir import RunDirectoryError

SHIPPED_MODELS = {"tiny-base": "tiny_base"}
"""Names of models that come with the package: directories in `dart_train/assets`."""


def main(context: ModuleContext) -> None:
    """Publish version 0. Does nothing when that has happened before."""
    target = context.run.checkpoint(0)
    if not target.exists():
        place_model(context.config.model.path, context.config.model.tiny, target, seed=context.config.seed)
    with context.open_data() as data:
        if data.newest_checkpoint() is None:
            data.publish(0, target, source="initial")


def place_model(path: str, tiny: dict[str, object], target: Path, *, seed: int) -> None:
    """Put a model directory at `target`, whole or not at all.

    Args:
        path: "tiny", a name of `SHIPPED_MODELS`, or a directory.
        tiny: fields of `TinyModelConfig`, for "tiny".
        target: where it goes; a link for a directory of the user's.
        seed: of the initial weights.

    Raises:
        RunDirectoryError: no such model.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    if path == "tiny":
        from dart_agent.tiny import TinyModelConfig, build_tiny_model

        build_tiny_model(temporary, seed=seed, config=TinyModelConfig(**tiny))  # type: ignore[arg-type]
    elif path in SHIPPED_MODELS:
        with as_file(files("dart_train").joinpath("assets", SHIPPED_MODELS[path])) as source:
            shutil.copytree(source, temporary)
    elif (Path(path) / "config.json").exists():
        temporary.symlink_to(Path(path).resolve(), target_is_directory=True)
    else:
        known = ", ".join(["tiny", *SHIPPED_MODELS])
        raise RunDirectoryError(f"no model {path!r}: give a directory with a config.json, or one of {known}")
    temporary.replace(target)
