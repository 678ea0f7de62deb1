"""Weights as files: a checkpoint directory with its version, and what can be known of it before an engine loads it.

A server may end over weights that are cut off or do not fit (vLLM does), or serve damaged ones: all that is found here
first, from the headers and the digests of the files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dart_train.core.digests import why_changed


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint directory and its version.

    Attributes:
        path: directory on this node.
        version: number of the version.
        url: where other nodes find it; "" where it is on this node alone.
    """

    path: str
    version: int
    url: str = field(default="", compare=False)


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
