"""Installed packages for tests: by pip, or a directory on the path with the metadata that pip would write."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

INTEGRATIONS = Path(__file__).parents[2] / "integrations"


def pip_install(package: Path, directory: Path) -> Path:
    """Install a package of this tree, without its dependencies, into a directory; where its modules are then."""
    shutil.copytree(package, directory / "source")  # a build leaves files beside the sources
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*command, "--target", directory / "site", directory / "source"], check=True, timeout=110)
    return directory / "site"


@contextlib.contextmanager
def installed(package: Path, directory: Path) -> Iterator[Path]:
    """A package of this tree, installed and on this process's path; yields where its modules are."""
    site = pip_install(package, directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield site


def put_on_path(*packages: str) -> None:
    """Make packages of `integrations` what they are once installed, for this process and those that it starts.

    Their names count from then on, also where tests are collected: `dart_gym_*` modules from the tree, with the
    metadata that pip would write in a directory that goes with the process.
    """
    metadata = tempfile.mkdtemp(prefix="dart-packages-")
    atexit.register(shutil.rmtree, metadata, ignore_errors=True)
    for package in packages:
        project = tomllib.loads((INTEGRATIONS / package / "pyproject.toml").read_text())["project"]
        install(Path(metadata), project["name"], project.get("entry-points", {}))
        sys.path.append(str(INTEGRATIONS / package))
    sys.path.append(metadata)


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
