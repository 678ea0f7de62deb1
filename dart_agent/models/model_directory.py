"""The directory of a model without loading its weights: its family, how its tokens are spelled, what goes with them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dart_gym.core.errors import ConfigurationError

_SAMPLE = 1 << 20

DIGESTS, FINGERPRINT, TRAINER_STATE = "digests.json", "fingerprint.json", "dart_state.json"
"""Files that a trainer writes next to the weights of a version, and that hold for these weights only."""

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of a LoRA adapter in peft's layout, in a directory without weights of its own."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")
_OF_WEIGHTS = frozenset({"config.json", "generation_config.json", ADAPTER_CONFIG, DIGESTS, FINGERPRINT, TRAINER_STATE})
"""Files that `save_pretrained` or a trainer writes itself, so that they are never copied from another directory."""

Decoder = Callable[[Sequence[int]], list[str]]
"""Token ids -> the text of each."""


def model_digest(model: Path) -> str:
    """Tell model directories apart by sizes, beginnings and ends of their files: 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(path for path in model.glob("*") if path.suffix in (".json", ".safetensors", ".bin")):
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_SAMPLE)
            file.seek(max(0, size - _SAMPLE))
            digest.update(f"{path.name} {size}".encode() + head + file.read(_SAMPLE))
    return digest.hexdigest()[:16]


def companion_files(model: str | Path) -> list[Path]:
    """Tokenizer, processor and template files of a model directory: all files except weights and model config."""
    return sorted(
        path
        for path in Path(model).iterdir()
        if path.is_file() and path.name not in _OF_WEIGHTS and not path.name.endswith(_WEIGHTS)
    )


def adapter_base(model: str | Path) -> str | None:
    """Return the directory of the weights under the adapter that a directory holds; None for whole weights.

    Raises:
        ConfigurationError: if the adapter does not say which.
    """
    path = Path(model) / ADAPTER_CONFIG
    try:
        base = json.loads(path.read_bytes())["base_model_name_or_path"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(base, str) or not base:
        raise ConfigurationError(f"{path} names no base_model_name_or_path: which weights is it an adapter of?")
    return base


def token_decoder(model: Path) -> Decoder:
    """Return a function from token ids to the text of each, with special tokens spelled out.

    Raises:
        ConfigurationError: if there is no `tokenizer.json`.
    """
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist: is {model} a directory of a model?")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
