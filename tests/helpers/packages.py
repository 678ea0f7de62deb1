"""Installed packages for tests: a directory on the path with the metadata that pip would write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    directory: Path,
    package: str,
    entry_points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
) -> None:
    """Put a package into a directory that stands on `sys.path`.

    Args:
        directory: on the path.
        package: name of the distribution.
        entry_points: by group and name, "module:attribute".
        modules: source by the name of the module.
    """
    metadata = directory / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    sections = (
        "\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in points.items())]) for group, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(sections) + "\n")
    for name, source in (modules or {}).items():
        (directory / f"{name}.py").write_text(source)
