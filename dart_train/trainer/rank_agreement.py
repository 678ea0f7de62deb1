"""Ranks that train together must be one program with one configuration: they compare before anything is loaded.

Two that differ do not fail at once: they wait for one another in the middle of a step, or train on something that
neither was told.
"""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dart_train.core.train_errors import TrainingError
from dart_train.trainer.weights.ranks import Ranks

OWN = frozenset({"local_rank", "torch_threads", "logging_dir", "output_dir"})
"""Settings that may differ from rank to rank."""
_PACKAGES = ("torch", "transformers", "accelerate", "peft")


def check_agreement(ranks: Ranks, settings: Mapping[str, Any], model_dir: str | Path) -> None:
    """Refuse ranks whose settings or models differ. Called by all.

    Raises:
        TrainingError: on all ranks, with what differs.
    """
    if ranks.count == 1:
        return
    facts = {f"setting {name}": repr(value) for name, value in settings.items() if name not in OWN}
    facts |= {f"package {name}": version(name) for name in _PACKAGES}
    facts |= {
        "python": platform.python_version(),
        "checkout": checkout_digest(),
        "model": _model_digest(Path(model_dir)),
    }
    if said := difference(ranks.gather(facts)):
        raise TrainingError(said)


def difference(facts: Sequence[Mapping[str, str]]) -> str | None:
    """Return what is not the same on all ranks, with each one's; None if nothing is. Pure."""
    names = dict.fromkeys(name for own in facts for name in own)
    unlike = [name for name in names if len({own.get(name) for own in facts}) > 1]
    if not unlike:
        return None
    first = unlike[0]
    found: dict[str, list[int]] = {}
    for rank, own in enumerate(facts):
        found.setdefault(own.get(first, "nothing"), []).append(rank)
    each = ", ".join(f"{value} on {'rank' if len(who) == 1 else 'ranks'} {_few(who)}" for value, who in found.items())
    more = f" ({len(unlike) - 1} more differ: {', '.join(unlike[1:4])})" if len(unlike) > 1 else ""
    return f"ranks differ in {first}: {each}{more}. Start all with the same checkout, packages, model and configuration"


def _few(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (", ..." if len(ranks) > 4 else "")


def checkout_digest() -> str:
    """Return a digest of the source files of the packages that compute."""
    digest = hashlib.sha256()
    here = Path(__file__).parents[2]
    for root in (here / "dart_agent", here / "dart_train"):
        for file in sorted(root.rglob("*.py")):
            digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _model_digest(model_dir: Path) -> str:
    """Return a digest of a model's small files, and of the sizes of its large ones."""
    digest = hashlib.sha256()
    for file in sorted(path for path in model_dir.iterdir() if path.is_file()):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        if file.suffix == ".json" and file.stat().st_size < 1 << 20:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
