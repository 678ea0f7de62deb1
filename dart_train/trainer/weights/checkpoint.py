"""Directories of weights: published versions (plain Hugging Face ones) and the states that training resumes from.

Invariants:
    - A directory with its final name is complete and on the disk: it is written under a temporary name, synced and
      renamed. A process killed, or a power cut, at any moment leaves at most a temporary directory, which the next
      start removes.
    - `transformers` writes `checkpoint-N` in place; it counts as complete only once `dart_state.json` is in it, which
      is written after all else is on the disk, and as long as every file has the size and the digest written there.
    - Weights that are not finite are never written.
    - What is written says which lease its weights contain (`LeasedGroups.serial`).
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dart_agent.models.expert_weights import save_model
from dart_agent.models.model_directory import ADAPTER_WEIGHTS, TRAINER_STATE, companion_files
from dart_gym.utils import durable_files
from dart_train.core.digests import first_difference, write_digests
from dart_train.core.fingerprint import Fingerprint
from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.adapters import base_model
from dart_train.trainer.weights.finiteness import is_finite
from dart_train.trainer.weights.snapshot import Snapshot, snapshot

_log = logging.getLogger(__name__)

STATE_FILE = TRAINER_STATE
DAMAGED = "damaged-"
_TEMPORARY = ".tmp-"
_SHARDED_WEIGHTS = "pytorch_model_fsdp_0"


def version_dir(root: str | Path, version: int) -> Path:
    """Where a published version lies: `<root>/v000012`."""
    return Path(root) / f"v{version:06d}"


def write_model(
    model: Any, directory: str | Path, source_dir: str | Path, *, lease: int | None = None, step: int = 0
) -> Path:
    """Write a model as a Hugging Face directory, atomically, in its source's number type, adapters merged.

    Raises:
        TrainingError: a weight is not finite.
    """
    taken = model if isinstance(model, Snapshot) else snapshot(model, source_dir)

    def save(path: Path) -> None:
        save_model(base_model(taken.model), path, taken.weights)
        _say_dtype(path / "config.json", taken.dtype)

    return _write_taken(taken, save, directory, source_dir, lease, step)


def write_adapter(
    taken: Snapshot, directory: str | Path, source_dir: str | Path, *, lease: int | None = None, step: int = 0
) -> Path:
    """Write a LoRA adapter as peft does, atomically, with its model's configuration and tokenizer beside it.

    Args:
        taken: by `snapshot.adapter_snapshot`.
        directory: of the version.
        source_dir: directory of the weights under the adapter, which it names as its base.
        lease: serial of the newest lease that it contains.
        step: optimizer steps that it contains.

    Raises:
        TrainingError: a weight is not finite.
    """

    def save(path: Path) -> None:
        [settings] = taken.model.peft_config.values()
        base = str(Path(source_dir).resolve())
        replace(settings, base_model_name_or_path=base, inference_mode=True).save_pretrained(str(path))
        save_file(taken.weights, path / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(Path(source_dir) / "config.json", path / "config.json")

    return _write_taken(taken, save, directory, source_dir, lease, step)


def _write_taken(
    taken: Snapshot,
    save: Callable[[Path], object],
    directory: str | Path,
    source_dir: str | Path,
    lease: int | None,
    step: int,
) -> Path:
    """Write a snapshot by `save`, if its weights are finite."""
    bad = first_non_finite(taken)
    if bad is not None:
        raise TrainingError(
            f"weight {bad} is not finite: nothing was written; resume from the last published version with a lower "
            "learning_rate or max_grad_norm"
        )

    def fingerprint(path: Path) -> Fingerprint:
        assert taken.fingerprint is not None  # the main rank writes, and has it
        return taken.fingerprint

    return write_version(save, directory, source_dir, lease=lease, step=step, fingerprint=fingerprint)


def _say_dtype(path: Path, dtype: torch.dtype) -> None:
    """Let a model's configuration name the type that was written, wherever it names one."""
    config = json.loads(path.read_text())
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if "dtype" in part:
            part["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_version(
    save: Callable[[Path], object],
    directory: str | Path,
    source_dir: str | Path,
    *,
    lease: int | None = None,
    step: int = 0,
    fingerprint: Callable[[Path], Fingerprint] | None = None,
) -> Path:
    """Write what `save` writes as a published version, atomically; see `write_model`."""

    def fill(path: Path) -> None:
        save(path)
        for file in companion_files(source_dir):
            if not (path / file.name).exists():
                shutil.copyfile(file, path / file.name)
        if fingerprint is not None:
            fingerprint(path).write(path)
        if lease is not None:
            (path / STATE_FILE).write_text(json.dumps({"lease": lease, "step": step}))
        write_digests(path)

    return _write_atomically(Path(directory), fill)


def contained_lease(model_dir: str | Path) -> int | None:
    """Serial of the newest lease that published weights contain; None where the directory does not say."""
    try:
        return json.loads((Path(model_dir) / STATE_FILE).read_text())["lease"]
    except (FileNotFoundError, NotADirectoryError):
        return None


def first_non_finite(model: Any) -> str | None:
    """Name of a weight of a model or a `Snapshot` that holds NaN or infinity; None if all are finite."""
    weights = model.weights.items() if isinstance(model, Snapshot) else model.named_parameters()
    for name, parameter in weights:
        if not is_finite(parameter):
            return name
    return None


def old_versions(
    root: str | Path, keep: int, served: int, first: int = 0, best: int | None = None, keep_s: float = 0.0
) -> list[int]:
    """Return published versions that are no longer needed.

    What stays: the newest `keep` and those of the last `keep_s` seconds (an engine that is starting reads one of them,
    while others are served newer ones), the best, every version that is not older than the one being served (an engine
    may be about to load it), and what came before `first` (the model as it was given, the warm start: comparisons need
    them).
    """
    names = (path.name[1:] for path in Path(root).glob("v*") if path.is_dir())
    found = sorted(int(name) for name in names if name.isdecimal() and int(name) >= first)
    spare = [version for version in found[: max(len(found) - keep, 0)] if version < served and version != best]
    newer_than = time.time() - keep_s
    return [version for version in spare if version_dir(root, version).stat().st_mtime <= newer_than]


def remove_version(root: str | Path, version: int) -> None:
    """Delete a published version's directory, if it is there; its name never stands for a partial one."""
    path = version_dir(root, version)
    if path.is_dir():
        _remove(path)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A state that training can resume from.

    Attributes:
        version: version of the weights in it; the newest that was published from them or before them.
        lease: serial of the newest lease that the weights contain; None if unknown (states of before 0.2).
        best: published version of the best weights so far; None if that is not measured.
    """

    path: Path
    step: int
    version: int
    unpublished: int
    lease: int | None = None
    skipped: int = 0
    best: int | None = None


def mark_incomplete(directory: str | Path) -> None:
    """Take back that a `checkpoint-N` directory is complete, before it is written (again)."""
    state = Path(directory) / STATE_FILE
    if state.exists():
        state.unlink()
        durable_files.sync_directories([state.parent])


def mark_complete(point: ResumePoint) -> None:
    """Declare a `checkpoint-N` directory complete once its files are on the disk, with their sizes and digests."""
    names = _files(point.path)
    durable_files.sync_tree(point.path)
    durable_files.sync_directories([point.path.parent])
    values = {key: value for key, value in asdict(point).items() if key != "path"}
    values["files"] = {name: (point.path / name).stat().st_size for name in names}
    values["sha256"] = durable_files.digests(point.path, names)
    durable_files.write_file(point.path / STATE_FILE, json.dumps(values))


def _files(directory: Path) -> list[str]:
    return sorted(
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and path.name != STATE_FILE and not path.name.startswith(_TEMPORARY)
    )


def resume_point(output_dir: str | Path) -> ResumePoint | None:
    """The newest whole state in a trainer's output directory, or None. Damaged ones are named."""
    for directory in _states(Path(output_dir)):
        try:
            return read_resume_point(directory)
        except TrainingError as error:
            _log.warning("%s", error)
    return None


def _states(root: Path) -> list[Path]:
    """Directories of the states that say that they are complete, newest first."""
    found = [file.parent for file in root.glob(f"checkpoint-*/{STATE_FILE}")]
    return sorted((path for path in found if _step(path) >= 0), key=_step, reverse=True)


def _step(path: Path) -> int:
    number = path.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else -1


def read_resume_point(directory: str | Path, *, contents: bool = True) -> ResumePoint:
    """Read the state of a `checkpoint-N` directory, checked by digests, or by sizes without `contents`.

    Raises:
        TrainingError: if it is damaged.
    """
    path = Path(directory)
    try:
        values = json.loads((path / STATE_FILE).read_text())
    except FileNotFoundError:
        raise TrainingError(
            f"{path} is incomplete (no {STATE_FILE}): the process was killed while writing it; resume from an older one"
        ) from None
    except ValueError:
        raise TrainingError(f"{path} is damaged: {STATE_FILE} is cut off; resume from an older one") from None
    known = values.pop("sha256", {})
    for name, size in values.pop("files", {}).items():
        found = (path / name).stat().st_size if (path / name).is_file() else None
        if found != size:
            what = "is gone" if found is None else f"has {found} bytes instead of {size}"
            raise _damage(path, f"{name} {what}")
    if contents and (wrong := first_difference(path, known)):
        raise _damage(path, f"{wrong} is not what was written (its SHA-256 differs)")
    return ResumePoint(path, **values)


def _damage(path: Path, what: str) -> TrainingError:
    return TrainingError(f"{path} is damaged: {what}; resume from an older one, or restore it from a copy")


def check_layout(point: ResumePoint, *, sharded: bool) -> None:
    """Refuse a state of another layout than `sharded`: `fsdp`'s parts lie elsewhere. Raises `TrainingError`."""
    saved = (point.path / _SHARDED_WEIGHTS).exists()
    if sharded == saved:
        return
    was, now = ("with fsdp" if value else "without sharding" for value in (saved, sharded))
    raise TrainingError(
        f"{point.path} was saved {was} and training goes on {now}: use the setting that it was saved with, "
        f"or begin from published version {point.version} in another output_dir"
    )


def remove_incomplete(*roots: str | Path) -> list[Path]:
    """Delete what a killed process left half-written under these directories; returns what was deleted.

    A state that was whole once and is damaged now is not deleted but renamed, so that its place can be written again
    and a person can look at it.
    """
    removed = []
    for root in map(Path, roots):
        for path in sorted(root.iterdir()) if root.is_dir() else ():
            unfinished = path.name.startswith("checkpoint-") and not (path / STATE_FILE).exists()
            if path.is_dir() and (unfinished or path.name.startswith(_TEMPORARY)):
                _remove(path)
                removed.append(path)
        _set_damaged_aside(root)
    return removed


def _set_damaged_aside(root: Path) -> None:
    """Rename damaged states. Only the one to resume from is read completely: older ones are when their turn comes."""
    contents = True
    for path in _states(root):
        try:
            read_resume_point(path, contents=contents)
            contents = False
        except TrainingError as error:
            _log.error("%s; kept as %s%s", error, DAMAGED, path.name)
            shutil.rmtree(root / f"{DAMAGED}{path.name}", ignore_errors=True)
            durable_files.rename(path, root / f"{DAMAGED}{path.name}")


def _write_atomically(directory: Path, fill: Callable[[Path], None]) -> Path:
    """Create `directory` with what `fill` writes into it; replaces one that is there."""
    durable_files.make_directories(directory.parent)
    temporary = directory.parent / f"{_TEMPORARY}{directory.name}-{os.getpid()}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        fill(temporary)
        durable_files.sync_tree(temporary)
        if directory.exists():
            _remove(directory)
        durable_files.rename(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return directory


def _remove(directory: Path) -> None:
    """Delete a directory so that its name never stands for a partial one."""
    if directory.name.startswith(_TEMPORARY):
        shutil.rmtree(directory)
    else:
        aside = directory.parent / f"{_TEMPORARY}removed-{directory.name}-{os.getpid()}"
        durable_files.remove_tree(directory, aside)
