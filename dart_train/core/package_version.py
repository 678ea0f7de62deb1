"""The version of this package, as runs, databases and archives write it down."""

VERSION = "0.2.0"
"""That of `pyproject.toml`; a test compares the two."""


def same_series(written: str) -> bool:
    """Return whether files of a version can be used; before 1.0 each minor version may change every format."""
    return written.split(".")[:2] == VERSION.split(".")[:2]
