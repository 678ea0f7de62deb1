"""Digests of published weights: which bytes they were when they were written, looked at before they are used.

They lie in the weights' directory. A length says nothing of a bad sector, a partial copy or a foreign file.
"""

import json
from pathlib import Path

from dart_agent.models.model_directory import DIGESTS
from dart_gym.utils.durable_files import digests

FILE = DIGESTS


def write_digests(directory: Path) -> None:
    """Put the digests of a directory's own files into it; linked files belong to their owner."""
    own = sorted(path.name for path in directory.iterdir() if path.is_file() and not path.is_symlink())
    (directory / FILE).write_text(json.dumps(digests(directory, [name for name in own if name != FILE]), indent=1))


def why_changed(directory: Path) -> str:
    """Compare the files of a directory with its digests; "" where they agree or it has none (a user's own model)."""
    try:
        known = json.loads((directory / FILE).read_bytes())
        wrong = first_difference(directory, known)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError, AttributeError) as error:
        return f"{FILE} cannot be read: {error}"
    return f"{wrong} is not what was written (its SHA-256 differs)" if wrong else ""


def first_difference(directory: Path, known: dict[str, str]) -> str:
    """Name of a file below a directory that is not of its digest, or is gone; "" where all are."""
    found = digests(directory, known)
    return next((name for name in sorted(known) if found[name] != known[name]), "")
