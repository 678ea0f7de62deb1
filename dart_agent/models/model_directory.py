"""What is read from the directory of a model without loading its weights: who it is, and how its tokens are spelled."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from dart_gym.core.errors import ConfigurationError

_SAMPLE = 1 << 20

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


def token_decoder(model: Path) -> Decoder:
    """Token ids -> the text of each, special ones spelled out. Raises `ConfigurationError`: no `tokenizer.json`."""
    from tokenizers import Tokenizer

    path = model / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist: is {model} a directory of a model?")
    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: [tokenizer.decode([token], skip_special_tokens=False) for token in ids]
