"""What LoRA adapters are called on a vLLM server, and how large it lets them be. Pure.

The server serves its own weights under the model's name, and the adapter of version 7 as "policy@7". A request names
one of them, so that its answer is of that version, whatever is loaded meanwhile.
"""

from collections.abc import Iterable

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`."""
KEPT_ADAPTERS = 2
"""Adapters that stay loaded: the newest one, and the one whose requests may still run."""


def adapter_name(model: str, version: int) -> str:
    """Return the name under which the adapter of a version is served."""
    return f"{model}@{version}"


def adapter_versions(model: str, served: Iterable[str]) -> list[int]:
    """Return the versions of a model's adapters among the names that a server serves, the oldest first."""
    found = (name.removeprefix(f"{model}@") for name in served if name.startswith(f"{model}@"))
    return sorted(int(number) for number in found if number.isascii() and number.isdecimal() and len(number) < 19)


def rank_limit(rank: int) -> int:
    """Return the least `--max-lora-rank` for adapters of a rank.

    Raises:
        ValueError: if vLLM takes none so large.
    """
    fits = [limit for limit in RANKS if limit >= rank]
    if not fits:
        raise ValueError(f"vLLM serves adapters up to rank {RANKS[-1]}, not {rank}")
    return fits[0]
