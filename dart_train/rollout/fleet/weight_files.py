"""Weights of a version: where they are, and what can be known of their files before an engine loads them.

A server may end over weights that are cut off or do not fit (vLLM does), or serve damaged ones: all that is found here
first, from the headers and the digests of the files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from dart_agent.engines.weight_stream.dart_weight_socket import SCHEME, NotReadError, read_facts
from dart_train.core.digests import why_changed
from dart_train.core.fingerprint import Fingerprint, fingerprint_of_fields, read_fingerprint
from dart_train.core.train_errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint directory and its version.

    Attributes:
        path: directory on this node.
        version: number of the version.
        url: where other nodes find it; "" where it is on this node alone.
        memory: where a trainer on this node has them in its memory (`dart_weight_socket`), while the directory is not
            there yet; "" otherwise.
    """

    path: str
    version: int
    url: str = field(default="", compare=False)
    memory: str = field(default="", compare=False)


def in_memory(fact: Mapping[str, Any] | None) -> Weights | None:
    """Return the weights that a trainer on this node has in its memory, as it says (`checkpoint_rows.IN_MEMORY`)."""
    if fact is None or not Path(fact["address"].removeprefix(SCHEME)).is_socket():
        return None
    return Weights(fact["path"], fact["version"], memory=f"{fact['address']}#{fact['version']}")


def published_fingerprint(weights: Weights) -> Fingerprint | None:
    """Return the fingerprint of weights, from where they are; None if they have none.

    Raises:
        CheckpointError: if it is unreadable, or the trainer has ended and left no files.
    """
    if not weights.memory:
        return read_fingerprint(weights.path)
    try:
        fields = read_facts(weights.memory)["fingerprint"]
        return None if fields is None else fingerprint_of_fields(fields)
    except (NotReadError, ValueError, KeyError, TypeError) as error:
        found = read_fingerprint(weights.path)  # its files may be there by now
        if found is None:
            raise CheckpointError(f"version {weights.version} has no fingerprint to compare with: {error}") from error
        return found


class BrokenFileError(Exception):
    """A file of weights is not whole; the message says how."""


def why_unusable(path: str | Path) -> str:
    """Look at a checkpoint directory; return what is wrong, "" if nothing is. Its files are read, for their digests."""
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
    """Compare the tensors of a checkpoint with those of the one that is being served; "" where they fit.

    Only shapes under the same name are compared: two writers of one model may name tensors otherwise, or leave tied
    ones out. Both directories must be readable here; what cannot be read is for `why_unusable` to tell, and fits.
    """
    try:
        new, old = tensor_shapes(Path(path)), tensor_shapes(Path(serving))
    except BrokenFileError:
        return ""
    return different_shapes(new or {}, old or {})


def different_shapes(new: Mapping[str, tuple[int, ...]], old: Mapping[str, tuple[int, ...]]) -> str:
    """Say how tensors of the same name differ; "" where they do not. Pure."""
    other = [name for name in sorted(new.keys() & old.keys()) if new[name] != old[name]]
    if not other:
        return ""
    shapes = f"{list(new[other[0]])} instead of {list(old[other[0]])}"
    return f"it does not fit the model: {len(other)} tensors have other shapes, such as {other[0]}: {shapes}"


def tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]] | None:
    """Shapes by name over all *.safetensors of a directory; None without any. Raises `BrokenFileError`."""
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
    """Return whether all tensors are there that the index of a checkpoint in several files names."""
    index = directory / "model.safetensors.index.json"
    try:
        names = json.loads(index.read_bytes())["weight_map"].keys()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{index.name} cannot be read: {error}"
    missing = sorted(names - shapes.keys())
    return f"{len(missing)} tensors of {index.name} are in no file, such as {missing[0]}" if missing else ""
