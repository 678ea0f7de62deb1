"""vLLM's own Python environment, for it decides over the versions of torch and transformers: made, found, examined."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from dart_gym.core.errors import MissingDependencyError
from dart_gym.utils.durable_files import only_maker
from dart_gym.utils.waits import waiting_for

VERSION = "0.32.0"
VARIABLE = "DART_VLLM"
COMMAND = "dart-train engines install"
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


def install(root: Path | None = None) -> Path:
    """Make the environment with vLLM for this machine's GPUs; returns at once where it is there.

    Raises:
        MissingDependencyError: too little space, something else is in the way, or the installer failed.
    """
    root = root or location()
    with only_maker(root):
        if problem(root):
            _make(root)
    return root


def _make(root: Path) -> None:
    if root.exists() and any(root.iterdir()) and not (root / "pyvenv.cfg").exists():
        raise MissingDependencyError(f"{root} holds something else; let {VARIABLE} name a new directory")
    free = shutil.disk_usage(root.parent).free // 10**6
    if free < NEEDED_MB:
        raise MissingDependencyError(
            f"only {free} MB are free at {root.parent}, vLLM needs {NEEDED_MB}; free some, or let {VARIABLE} name "
            "another disk"
        )
    _run([sys.executable, "-m", "venv", "--clear", str(root)])
    python, uv = str(root / "bin" / "python"), shutil.which("uv")
    if uv:  # knows which build of torch the driver takes
        _run([uv, "pip", "install", "--quiet", "--python", python, "--torch-backend", "auto", f"vllm=={VERSION}"])
    else:
        _run([python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "-q", f"vllm=={VERSION}"])
    if trouble := problem(root):
        raise MissingDependencyError(f"vLLM was installed and is not right: {trouble}")


def _run(command: list[str]) -> None:
    with waiting_for(" ".join(command[1:5])):
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-600:]
        raise MissingDependencyError(f"{command[0]} failed: {words}; next step: mend that and run {COMMAND} again")
