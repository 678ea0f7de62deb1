"""Installing packages with pip into an environment of its own, and the line that says why that failed.

pip prints that no version was found where an index refuses the key, fails or asks to come later: what the index
answered is in its log only, so that log is kept and read.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

LONGEST = 400
_REFUSED = re.compile(r"Could not fetch URL (\S+): (.+?)(?: - skipping)?$", re.MULTILINE)
_BROKEN = re.compile(r"after connection broken by (.+?): /", re.MULTILINE)
_SKIPPED = re.compile(r"Skipping page (\S+) because the \w+ request got Content-Type: (\S+)", re.MULTILINE)
_UNKNOWN = "(from versions: none)"
_ADDRESS = "is the address of the package index right (PIP_INDEX_URL, pip config list)?"


def pip_install(python: str, arguments: Sequence[str], timeout_s: float | None = None) -> str:
    """Run `pip install` of another Python; return why it failed, "" where it did not.

    Args:
        python: the interpreter of the environment.
        arguments: of `pip install`.
        timeout_s: seconds for one answer of the package index; None for pip's own limit.
    """
    with tempfile.TemporaryDirectory(prefix="dart-pip-") as folder:
        log = Path(folder) / "log"
        patience = [] if timeout_s is None else ["--timeout", f"{timeout_s:g}", "--retries", "1"]
        options = ["--no-input", "--disable-pip-version-check", "-q", "--log", str(log), *patience]
        done = subprocess.run([python, "-m", "pip", "install", *options, *arguments], capture_output=True, text=True)
        if done.returncode == 0:
            return ""
        logged = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        return why_pip_failed(done.stderr or done.stdout, logged)


def why_pip_failed(said: str, logged: str) -> str:
    """Return the reason in one line, of what pip printed and of its log. Pure."""
    if found := _REFUSED.findall(logged):
        url, reason = found[-1]
        return f"the package index answers {' '.join(reason.split())[:LONGEST]} ({url})"
    if found := _SKIPPED.findall(said):
        url, kind = found[-1]
        return f"what answers at {url} is no package index, it sends {kind}: {_ADDRESS}"
    if found := _BROKEN.findall(said):
        return f"the package index cannot be reached ({found[-1][:LONGEST]})"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:] or ["it says nothing"]
    hint = f"; the index knows no such package: {_ADDRESS}" if _UNKNOWN in said else ""
    return f"{errors[0][:LONGEST]}{hint}"
