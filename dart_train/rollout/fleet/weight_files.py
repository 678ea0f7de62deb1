"""Weights of a version: their places, and the checks of their files before an engine loads them.

A server may crash over weights that are truncated or do not fit (vLLM does), or serve damaged ones. The headers and the
digests of the files show this beforehand.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dart_agent.engines.weight_stream.dart_weight_socket import SCHEME, NotReadError, read_facts
from dart_agent.models.model_directory import adapter_base
from dart_train.core.digests import why_changed
from dart_train.core.fingerprint import Fingerprint, fingerprint_of_fields, read_fingerprint
from dart_train.core.train_errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint directory and its version.

    Attributes:
        path: directory on this node.
        version: number of the version.
        url: address from which other nodes fetch it; "" if it is on this node alone.
        memory: address at which a trainer on this node offers it from memory (`dart_weight_socket`), while its
            directory does not exist yet; "" otherwise.
    """

    path: str
    version: int
    url: str = field(default="", compare=False)
    memory: str = field(default="", compare=False)


def launched(weights: Weights, unknown: int) -> Weights:
    """Return what a server is started with: the weights themselves, or those under an adapter as an unknown version.

    Raises:
        ConfigurationError: if the adapter does not say what is under it.
    """
    base = adapter_base(weights.path)
    return weights if base is None else Weights(base, unknown)


def in_memory(fact: Mapping[str, Any] | None) -> Weights | None:
    """Return the weights in a trainer's memory on this node, from its announcement (`checkpoint_rows.IN_MEMORY`)."""
    if fact is None or not Path(fact["address"].removeprefix(SCHEME)).is_socket():
        return None
    return Weights(fact["path"], fact["version"], memory=f"{fact['address']}#{fact['version']}")


def published_fingerprint(weights: Weights) -> Fingerprint | None:
    """Return the fingerprint of weights, from memory or files; None if they have no fingerprint.

    Raises:
        CheckpointError: if it is unreadable, or the trainer has ended and left no files.
    """
    if not weights.memory:
        return read_fingerprint(weights.path)
    try:
        fields = read_facts(weights.memory)["fingerprint"]
        return None if fields is None else fingerprint_of_fields(fields)
    except (NotReadError, ValueError, KeyError, TypeError) as error:
        found = read_fingerprint(weights.path)  # its files may exist by now
        if found is None:
            raise CheckpointError(f"version {weights.version} has no fingerprint to compare with: {error}") from error
        return found


class BrokenFileError(Exception):
    """A file of weights is damaged; the message says how."""


def why_unusable(path: str | Path) -> str:
    """Return what is wrong with a checkpoint directory, or "". Reads all of its files, for the digests."""
    directory = Path(path)
    if not directory.is_dir():
        return f"{directory} is no directory"
    try:
        json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        return f"config.json cannot be read: {error}"
    try:
        shapes = tensor_shapes(directory)
    except BrokenFileError as error:
        return str(error)
    if shapes is None:
        return f"{directory} holds no *.safetensors"
    return _why_incomplete(directory, shapes) or why_changed(directory)


def why_unfit(path: str | Path, serving: str | Path) -> str:
    """Return how the tensors of a checkpoint differ from those of the served one, or "" if they fit.

    Only shapes under the same name are compared, because two writers of one model may use different names or leave out
    tied tensors. Both directories must be readable here. Unreadable files are left to `why_unusable`.
    """
    try:
        new, old = tensor_shapes(Path(path)), tensor_shapes(Path(serving))
    except BrokenFileError:
        return ""
    return different_shapes(new or {}, old or {})


def different_shapes(new: Mapping[str, tuple[int, ...]], old: Mapping[str, tuple[int, ...]]) -> str:
    """Return how tensors of the same name differ in shape, or "". Pure."""
    other = [name for name in sorted(new.keys() & old.keys()) if new[name] != old[name]]
    if not other:
        return ""
    shapes = f"{list(new[other[0]])} instead of {list(old[other[0]])}"
    return f"it does not fit the model: {len(other)} tensors have other shapes, such as {other[0]}: {shapes}"


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]] | None:
    """Return shapes by name over all *.safetensors of a directory; None without any. Raises `BrokenFileError`."""
    files = sorted(directory.glob("*.safetensors"))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, "numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}
        except (SafetensorError, OSError) as error:
            raise BrokenFileError(f"{file.name} cannot be read: {error}") from error
    return shapes if files else None


def _why_incomplete(directory: Path, shapes: Mapping[str, object]) -> str:
    """Return which tensors of the index are missing, for a checkpoint in several files, or ""."""
    index = directory / "model.safetensors.index.json"
    try:
        names = json.loads(index.read_bytes())["weight_map"].keys()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{index.name} cannot be read: {error}"
    missing = sorted(names - shapes.keys())
    return f"{len(missing)} tensors of {index.name} are in no file, such as {missing[0]}" if missing else ""
