"""Directories of weights: published versions (plain Hugging Face ones) and the states that training resumes from.

Invariants:
    - A directory with its final name is complete: it is written under a temporary name and renamed. A process killed
      at any moment leaves at most a temporary directory, which the next start removes.
    - `transformers` writes `checkpoint-N` in place; it counts as complete only once `dart_state.json` is in it, which
      is written last and renamed into place.
    - Weights that are not finite are never written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dart_train.fingerprint import FILE as FINGERPRINT_FILE
from dart_train.trainer.errors import TrainingError
from dart_train.trainer.fingerprint import fingerprint_of

STATE_FILE = "dart_state.json"
_TEMPORARY = ".tmp-"
# Written by `save_pretrained`, so never copied from the source directory.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")
_WRITTEN = frozenset({"config.json", "generation_config.json", STATE_FILE, FINGERPRINT_FILE})


def version_dir(root: str | Path, version: int) -> Path:
    """Where a published version lies: `<root>/v000012`."""
    return Path(root) / f"v{version:06d}"


def write_model(model: Any, directory: str | Path, source_dir: str | Path) -> Path:
    """Write a model as a plain Hugging Face directory, atomically.

    Args:
        model: a `PreTrainedModel`.
        directory: final name; a directory that is there already is replaced.
        source_dir: the directory that the model came from; its tokenizer and processor files are copied.

    Raises:
        TrainingError: a weight is not finite.
    """
    bad = first_non_finite(model)
    if bad is not None:
        raise TrainingError(
            f"weight {bad} is not finite: nothing was written; resume from the last published version with a lower "
            "learning_rate or max_grad_norm"
        )

    def fill(path: Path) -> None:
        model.save_pretrained(path)
        for file in companion_files(source_dir):
            shutil.copyfile(file, path / file.name)
        fingerprint_of(model, path).write(path)

    return _write_atomically(Path(directory), fill)


def first_non_finite(model: Any) -> str | None:
    """Name of a parameter that holds NaN or infinity; None if all are finite."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return name
    return None


def companion_files(model_dir: str | Path) -> list[Path]:
    """Tokenizer, processor and template files of a model directory: all of it that is not weights or model config."""
    return sorted(
        path
        for path in Path(model_dir).iterdir()
        if path.is_file() and path.name not in _WRITTEN and not path.name.endswith(_WEIGHTS)
    )


def prune_versions(root: str | Path, keep: int, served: int, first: int = 0) -> list[int]:
    """Delete old published versions.

    What stays: the newest `keep`, every version that is not older than the one being served (an engine may be about
    to load it), and what came before `first` (the model as it was given, the warm start: comparisons need them).

    Args:
        root: where versions lie.
        keep: how many of the newest stay.
        served: newest version known to be served by an engine.
        first: oldest version that may be deleted.

    Returns:
        the deleted versions.
    """
    names = (path.name[1:] for path in Path(root).glob("v*") if path.is_dir())
    found = sorted(int(name) for name in names if name.isdecimal() and int(name) >= first)
    removed = [version for version in found[: max(len(found) - keep, 0)] if version < served]
    for version in removed:
        _remove(version_dir(root, version))
    return removed


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A state that training can go on from.

    Attributes:
        path: a `checkpoint-N` directory of `transformers.Trainer`.
        step: optimizer steps done.
        version: version of the weights in it; the newest that was published from them or before them.
        unpublished: optimizer updates since that version.
    """

    path: Path
    step: int
    version: int
    unpublished: int


def mark_complete(directory: str | Path, *, step: int, version: int, unpublished: int) -> None:
    """Declare a `checkpoint-N` directory complete."""
    point = ResumePoint(Path(directory), step, version, unpublished)
    text = json.dumps({key: value for key, value in asdict(point).items() if key != "path"})
    temporary = point.path / f"{_TEMPORARY}{STATE_FILE}"
    temporary.write_text(text)
    os.replace(temporary, point.path / STATE_FILE)


def resume_point(output_dir: str | Path) -> ResumePoint | None:
    """The newest complete state in a trainer's output directory; None if there is none."""
    points = [read_resume_point(path.parent) for path in Path(output_dir).glob(f"checkpoint-*/{STATE_FILE}")]
    return max(points, key=lambda point: point.step, default=None)


def read_resume_point(directory: str | Path) -> ResumePoint:
    """The state in one `checkpoint-N` directory.

    Raises:
        TrainingError: it is incomplete.
    """
    path = Path(directory)
    try:
        values = json.loads((path / STATE_FILE).read_text())
    except FileNotFoundError:
        raise TrainingError(
            f"{path} is incomplete (no {STATE_FILE}): the process was killed while writing it; resume from an older one"
        ) from None
    return ResumePoint(path, values["step"], values["version"], values["unpublished"])


def remove_incomplete(*roots: str | Path) -> list[Path]:
    """Delete what a killed process left half-written under these directories; returns what was deleted."""
    removed = []
    for root in map(Path, roots):
        if not root.is_dir():
            continue
        for path in root.iterdir():
            half = path.name.startswith("checkpoint-") and not (path / STATE_FILE).exists()
            if path.is_dir() and (half or path.name.startswith(_TEMPORARY)):
                _remove(path)
                removed.append(path)
    return removed


def _write_atomically(directory: Path, fill: Callable[[Path], None]) -> Path:
    """Create `directory` with what `fill` writes into it; replaces one that is there."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.parent / f"{_TEMPORARY}{directory.name}-{os.getpid()}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        fill(temporary)
        if directory.exists():
            _remove(directory)
        os.rename(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return directory


def _remove(directory: Path) -> None:
    """Delete a directory so that its name never stands for half of it."""
    doomed = directory.parent / f"{_TEMPORARY}removed-{directory.name}-{os.getpid()}"
    if not directory.name.startswith(_TEMPORARY):
        os.rename(directory, doomed)
        directory = doomed
    shutil.rmtree(directory)
