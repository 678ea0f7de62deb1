"""The Python environment of the evaluator: where it is, whether it is right, how it is made.

OSWorld's getters and metrics (`desktop-env` of PyPI) pin old versions of large packages, and two of the packages that
they import are under the AGPL. So they live in a virtual environment of their own, which only the evaluator worker
uses; nothing of it is imported here.

Invariants:
    - An environment counts only when its stamp carries the hash of today's requirements: a half-made one never does.
    - Making it is idempotent; of several makers at once, one works and the others wait for it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.core.package_installer import pip_install
from dart_gym.utils.durable_files import only_maker
from dart_gym.utils.waits import waiting_for

PACKAGE, VERSION = "desktop-env", "1.0.2"
EVALUATOR = f"{PACKAGE}/{VERSION}"
VARIABLE = "DART_GYM_EVALUATOR"
COMMAND = "dart-gym evaluator install"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NEEDED_MB = 2000
_AGAIN = f"next step: mend that and run {COMMAND} again"
_PYTHONS = ("/usr/bin/python3", "python3.12", "python3.11", sys.executable)
_SUITS = "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))"


@dataclass(frozen=True, slots=True)
class EvaluatorEnvironment:
    """A finished environment, and the installation (`base`) of its Python, outside of `/usr` perhaps."""

    root: Path
    base: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def numba_cache(self) -> Path:
        """Compiled code of the audio metrics, made when the environment was."""
        return self.root / "numba-cache"


def location() -> Path:
    """Where the environment belongs: `DART_GYM_EVALUATOR`, or a directory of this user."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "dart-gym" / f"evaluator-{VERSION}"


def find(root: Path | None = None) -> EvaluatorEnvironment:
    """Return the finished environment.

    Raises:
        MissingDependencyError: if the environment is missing, or was made for other requirements.
    """
    root = root or location()
    if not stamp_file(root).is_file():
        other = any(root.glob("dart-evaluator-*"))
        reason = "was made from other requirements" if other else "is not installed"
        message = f"OSWorld's evaluator ({EVALUATOR}) {reason} in {root}; next step: {COMMAND}"
        raise MissingDependencyError(f"{message} (once, about 1.3 GB; {VARIABLE} names another place)")
    return EvaluatorEnvironment(root, Path(stamp_file(root).read_text().strip()))


def stamp_file(root: Path) -> Path:
    """Return the file that marks a finished environment; its name depends on the requirements."""
    content = REQUIREMENTS.read_bytes() + VERSION.encode()
    return root / f"dart-evaluator-{hashlib.sha256(content).hexdigest()[:16]}"


def install(root: Path | None = None, timeout_s: float | None = None) -> EvaluatorEnvironment:
    """Create or update the environment.

    Args:
        root: its directory; None for `location`.
        timeout_s: seconds for one answer of the package index; None for pip's own limit.

    Raises:
        MissingDependencyError: if there is no Python or no space, or pip fails.
    """
    root = root or location()
    with only_maker(root):
        if not stamp_file(root).is_file():
            _make(root, timeout_s)
    return find(root)


def _make(root: Path, timeout_s: float | None) -> None:
    if root.exists() and any(root.iterdir()) and not (root / "pyvenv.cfg").exists():
        raise ConfigurationError(f"{root} holds something else; let {VARIABLE} name a new directory")
    free = shutil.disk_usage(root.parent).free >> 20
    if free < NEEDED_MB:
        raise MissingDependencyError(
            f"only {free} MB are free at {root.parent}, the evaluator needs {NEEDED_MB}; free some, or set {VARIABLE}"
        )
    python = _find_python()
    for stamp in root.glob("dart-evaluator-*"):
        stamp.unlink()
    with waiting_for(f"a new Python environment in {root}"):
        made = subprocess.run([python, "-m", "venv", "--clear", str(root)], capture_output=True, text=True)
    if made.returncode:
        words = " ".join((made.stderr or made.stdout).split())[-600:]
        raise MissingDependencyError(f"the virtual environment could not be made: {words}; {_AGAIN}")
    for arguments in (["-r", str(REQUIREMENTS)], ["--no-deps", f"{PACKAGE}=={VERSION}"]):
        with waiting_for(f"pip install {arguments[-1]}"):
            why = pip_install(str(root / "bin" / "python"), arguments, timeout_s)
        if why:
            raise MissingDependencyError(f"pip could not install {arguments[-1]}: {why}; {_AGAIN}")
    _warm(root)
    base = subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True)
    stamp_file(root).write_text(base.stdout)


def _find_python() -> str:
    for name in _PYTHONS:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", _SUITS], capture_output=True).returncode == 0:
            return path
    raise MissingDependencyError(
        "the evaluator needs Python 3.11 or 3.12 with the module venv; next step: apt-get install python3 python3-venv "
        "where that is one of them (Debian 12, Ubuntu 24.04), else put a python3.12 on the PATH "
        "(uv python install 3.12)"
    )


def _warm(root: Path) -> None:
    """Compile now what the audio metrics would compile at each evaluation (some ten seconds)."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(root / "numba-cache")}
    program = (
        "import io, wave, librosa; sound = io.BytesIO(); file = wave.open(sound, 'wb'); file.setnchannels(1);"
        "file.setsampwidth(2); file.setframerate(44100); file.writeframes(bytes(range(256)) * 400); file.close();"
        "y, sr = librosa.load(io.BytesIO(sound.getvalue()));"
        "librosa.util.normalize(librosa.feature.mfcc(y=y, sr=sr), axis=1)"
    )
    command = [str(root / "bin" / "python"), "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise MissingDependencyError(f"the installed audio packages do not work: {result.stderr.strip()[-600:]}")
