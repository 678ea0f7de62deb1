"""Where messages send their reader: to files of the checkout that runs, or to the web for an installed wheel.

Invariants:
    - The addresses of the project stand in `[project.urls]` of pyproject.toml alone, and come here by the metadata.
    - A message of an installed wheel names no file and no `make` target that only a checkout has.
"""

from __future__ import annotations

import functools
import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = re.compile(r"\bdocs/([\w/]+)\.md")


@functools.cache
def in_checkout() -> bool:
    """Return whether this package is imported from a checkout of the project."""
    return (_ROOT / "pyproject.toml").is_file() and (_ROOT / "docs").is_dir()


def page(name: str) -> str:
    """Return where a page of the documentation is, such as `page("guides/engines")`."""
    return f"docs/{name}.md" if in_checkout() else f"{project_url('Documentation')}/{name}.md"


def with_addresses(text: str) -> str:
    """Return a text that names pages as docs/NAME.md with what `page` says of each."""
    return _PAGE.sub(lambda match: page(match[1]), text)


def step(checkout: str, otherwise: str) -> str:
    """Return a next step: the one of a checkout, or the one that only needs the installed package."""
    return checkout if in_checkout() else otherwise


def integration(folder: str) -> str:
    """Return the command that installs a package of the project's folder `integrations`."""
    name = f"dart-gym-{folder.replace('_', '-')}"
    return step(
        f"pip install --no-deps ./integrations/{folder}",
        f"pip install '{name} @ git+{project_url('Repository')}#subdirectory=integrations/{folder}'",
    )


@functools.cache
def project_url(label: str) -> str:
    """Return one of the project's addresses, as the installed package's metadata name it."""
    try:
        urls = metadata("dart-gui").get_all("Project-URL") or []
    except PackageNotFoundError:  # a source tree on PYTHONPATH that nobody installed
        urls = []
    found = dict(url.split(", ", 1) for url in urls)
    return found.get(label, f"the project's {label.lower()}").rstrip("/")
