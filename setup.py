"""The description for a package index: the README with full addresses. All else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#)([^)\s]+)\)")


def absolute(match: re.Match[str]) -> str:
    """Return a link or picture of the README with the address of its file."""
    kind = "raw" if match[1].startswith("!") else "blob"
    return f"{match[1]}{URLS['Repository']}/{kind}/main/{match[2]})"


setup(
    long_description=LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
