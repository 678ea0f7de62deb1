"""Runs command lines of a program as they run where the optional packages are not installed.

    python -m tests.helpers.without_packages MODULE FOLDER < lines      # JSON: by line, status and output

Each line runs in a fork, in FOLDER: a hundred take seconds. A fork is all there is to `--help` and to messages.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shlex
import sys
import tempfile
import traceback

from dart_gym.commands.program import EXTRAS

EXTRA_PACKAGES = ("vllm", *(name for names in EXTRAS.values() for name in names if name != "google"))


def main() -> None:
    """Run each line of the input and print what became of it."""
    for name in EXTRA_PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment]
    module = importlib.import_module(sys.argv[1])
    os.chdir(sys.argv[2])
    _load(module)
    json.dump({line: _run(module, line) for line in sys.stdin.read().splitlines()}, sys.stdout)


def _load(module: object) -> None:
    """Have everything that help needs loaded, so that no fork loads it again."""
    sys.argv = ["program", "--help"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        module.main()  # type: ignore[attr-defined]


def _run(module: object, line: str) -> tuple[int, str]:
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if not pid:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.argv = shlex.split(line)
            status = 0
            try:
                module.main()  # type: ignore[attr-defined]
            except SystemExit as end:
                status = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        return status, said.read()


if __name__ == "__main__":
    main()
