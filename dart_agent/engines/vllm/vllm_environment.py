"""vLLM's own Python environment, for it decides over the versions of torch and transformers: made, found, examined."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.package_installer import pip_install
from dart_gym.utils.durable_files import only_maker
from dart_gym.utils.waits import waiting_for

VERSION = "0.32.0"
VARIABLE = "DART_VLLM"
COMMAND = "dart-train engines install"
_AGAIN = f"next step: mend that and run {COMMAND} again"
NEEDED_MB = 20_000
"""vLLM, torch and the libraries of CUDA, while they are unpacked."""


def location() -> Path:
    """Where the environment belongs: `DART_VLLM`, or a directory of this user."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "dart-gym" / f"vllm-{VERSION}"


def program() -> str:
    """The command `vllm`: that of the environment, or else whatever the PATH has."""
    own = location() / "bin" / "vllm"
    return str(own) if own.is_file() else "vllm"


def problem(root: Path | None = None) -> str:
    """Return what is wrong with the environment, as far as files tell; "" where vLLM of our version is there."""
    root = root or location()
    if not (root / "bin" / "vllm").is_file():
        return f"not installed in {root}"
    packages = [str(path) for path in root.glob("lib/python3*/site-packages")]
    found = next((one.version for one in distributions(name="vllm", path=packages)), "none")
    return "" if found.partition("+")[0] == VERSION else f"{root} has vLLM {found}, and {VERSION} is what is tested"


def install(root: Path | None = None, timeout_s: float | None = None) -> Path:
    """Make the environment with vLLM for this machine's GPUs; returns at once where it is there.

    Args:
        root: directory of the environment; None for `location`.
        timeout_s: seconds for one answer of the package index; None for the installer's own limit.

    Raises:
        MissingDependencyError: too little space, something else is in the way, or the installer failed.
    """
    root = root or location()
    with only_maker(root):
        if problem(root):
            _make(root, timeout_s)
    return root


def _make(root: Path, timeout_s: float | None) -> None:
    if root.exists() and any(root.iterdir()) and not (root / "pyvenv.cfg").exists():
        raise MissingDependencyError(f"{root} holds something else; let {VARIABLE} name a new directory")
    free = shutil.disk_usage(root.parent).free // 10**6
    if free < NEEDED_MB:
        raise MissingDependencyError(
            f"only {free} MB are free at {root.parent}, vLLM needs {NEEDED_MB}; free some, or let {VARIABLE} name "
            "another disk"
        )
    _run([sys.executable, "-m", "venv", "--clear", str(root)], f"a new Python environment in {root}")
    python, uv = str(root / "bin" / "python"), shutil.which("uv")
    if uv:  # knows which build of torch the driver takes
        command = [uv, "pip", "install", "--quiet", "--python", python, "--torch-backend", "auto", f"vllm=={VERSION}"]
        limit = {} if timeout_s is None else {"UV_HTTP_TIMEOUT": str(math.ceil(timeout_s))}
        _run(command, f"uv pip install vllm=={VERSION}", limit)
    else:
        with waiting_for(f"pip install vllm=={VERSION}"):
            why = pip_install(python, [f"vllm=={VERSION}"], timeout_s)
        if why:
            raise MissingDependencyError(f"pip could not install vllm=={VERSION}: {why}; {_AGAIN}")
    if trouble := problem(root):
        raise MissingDependencyError(f"vLLM was installed and is not right: {trouble}")


def _run(command: list[str], what: str, variables: Mapping[str, str] | None = None) -> None:
    with waiting_for(what):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(variables or {})})
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-600:]
        raise MissingDependencyError(f"{what} failed: {words}; {_AGAIN}")
