"""A Harbor environment without Docker or KVM: `harbor run -e dart_gym_harbor_sandbox:BubblewrapEnvironment`.

Runs a task's commands in a sandbox of bubblewrap with the programs of this machine: no image is built, the commands of
the task's `environment/` are on the PATH. For the tasks that `dart_gym_harbor` exports.

Invariants:
    - A command sees this machine's programs and a Python with dart-gui, read-only, and a root of its own in memory: no
      home, no network, no other process. It ends with the environment.
    - Files come and go as archives through the sandbox's own tar: no path or link of its is followed out here.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

try:
    from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
    from harbor.environments.capabilities import EnvironmentCapabilities
except ImportError as error:
    raise ImportError("Harbor is not installed; next step: pip install 'harbor>=0.24,<0.25' (Python 3.12)") from error

VISIBLE = ("passwd", "group", "ld.so.cache", "alternatives", "fonts", "ssl/certs", "localtime")
"""Of /etc, where they are."""
WHERE = """
import dart_agent, dart_gym, json, os, sys
print(json.dumps([sys.prefix, sys.base_prefix, *(os.path.dirname(m.__file__) for m in (dart_gym, dart_agent))]))
"""
INSIDE = """
import base64, json, os, subprocess, sys, threading
lock = threading.Lock()
def run(asked):
    environment = {**os.environ, **asked["env"]}
    try:
        done = subprocess.run(["bash", "-c", asked["command"]], env=environment, cwd=asked["cwd"], capture_output=True,
                              input=base64.b64decode(asked["input"]), timeout=asked["timeout"])
        told = [done.returncode, done.stdout, done.stderr]
    except subprocess.TimeoutExpired as late:
        told = [124, late.stdout or b"", (late.stderr or b"") + b"timed out"]
    except OSError as error:
        told = [126, b"", str(error).encode()]
    told[1:] = [base64.b64encode(part).decode() for part in told[1:]]
    with lock:
        print(json.dumps([asked["id"], *told]), flush=True)
for line in sys.stdin:
    threading.Thread(target=run, args=(json.loads(line),), daemon=True).start()
"""
MOST = 1 << 28  # bytes of an answer


class BubblewrapEnvironment(BaseEnvironment):
    """One sandbox.

    Args:
        python: a Python that has dart-gui (`--ek python=/path/to/bin/python`); its folders are seen read-only.
        given: what Harbor gives every environment.
    """

    def __init__(self, *given: Any, python: str = "python3", **named: Any) -> None:
        self._python = shutil.which(python) or python
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Future[list[Any]]] = {}
        self._ids = itertools.count()
        super().__init__(*given, **named)

    @staticmethod
    def type() -> str:
        """Its name in records."""
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """No network at all."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        """Raises `FileNotFoundError`: no bubblewrap here."""
        if shutil.which("bwrap") is None:
            raise FileNotFoundError("bubblewrap is not installed; next step: apt-get install bubblewrap")

    def command(self) -> list[str]:
        """The sandbox as a command line. Raises `RuntimeError`: the Python has no dart-gui."""
        found = subprocess.run([self._python, "-c", WHERE], capture_output=True, text=True)
        if found.returncode:
            raise RuntimeError(f"{self._python} has no dart-gui: {found.stderr.strip().splitlines()[-1]}")
        seen = ["--tmpfs", "/tmp", "--ro-bind", "/usr", "/usr"]  # what is seen of the host may lie below /tmp
        for name in ("bin", "sbin", "lib", "lib64"):
            seen += ["--symlink", f"usr/{name}", f"/{name}"]
        for name in VISIBLE:
            seen += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for folder in dict.fromkeys(json.loads(found.stdout)):
            seen += ["--ro-bind", folder, folder]
        seen += ["--ro-bind", str(self.environment_dir), "/environment", "--proc", "/proc", "--dev", "/dev"]
        path = f"/environment:{Path(self._python).parent}:/usr/local/bin:/usr/bin:/bin"
        own = ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        own += ["--setenv", "PATH", path, "--setenv", "HOME", "/tmp", "--chdir", "/tmp"]
        return ["bwrap", *seen, *own, self._python, "-I", "-c", INSIDE]

    async def start(self, force_build: bool) -> None:
        """Start the sandbox; nothing is built."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self.command(), stdin=pipe, stdout=pipe, limit=MOST)
        self._reading = asyncio.create_task(self._read())
        await self._must("mkdir -p /logs/agent /logs/verifier /logs/artifacts /tests /solution")

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            number, *answer = json.loads(line)
            if future := self._answers.pop(number, None):
                future.set_result(answer)
        for future in self._answers.values():
            future.set_result([137, "", base64.b64encode(b"the sandbox has ended").decode()])
        self._answers.clear()

    async def stop(self, delete: bool) -> None:
        """End the sandbox and all that runs in it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
            await self._reading

    async def _run(self, command: str, given: bytes = b"", **options: Any) -> tuple[int, bytes, bytes]:
        if self._process is None or self._process.stdin is None or self._process.returncode is not None:
            return 137, b"", b"the sandbox has ended"
        number = next(self._ids)
        asked = {"id": number, "command": command, "env": {}, "cwd": "/tmp", "timeout": None} | options
        asked["input"] = base64.b64encode(given).decode()
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        await self._process.stdin.drain()
        code, out, err = await answer
        return code, base64.b64decode(out), base64.b64decode(err)

    async def _must(self, command: str, given: bytes = b"") -> bytes:
        code, out, err = await self._run(command, given)
        if code:
            raise RuntimeError(f"{command}: {err.decode(errors='replace').strip()}")
        return out

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in the sandbox. There is one user; others that are asked for are it."""
        merged = self._merge_env(env) or {}
        where = cwd or self.task_env_config.workdir or "/tmp"
        code, out, err = await self._run(command, env=merged, cwd=where, timeout=timeout_sec)
        return ExecResult(stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"), return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the sandbox."""
        place = shlex.quote(target_path)
        await self._must(f'mkdir -p "$(dirname {place})" && cat >{place}', Path(source_path).read_bytes())

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's content into the sandbox."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source_dir, ".")
        place = shlex.quote(target_dir)
        await self._must(f"mkdir -p {place} && tar -xf - --no-same-owner -C {place}", packed.getvalue())

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox."""
        content = await self._must(f"cat {shlex.quote(source_path)}")
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder's content out of the sandbox."""
        packed = await self._must(f"tar -cf - -C {shlex.quote(source_dir)} .")
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(target_dir, filter=transfer_tar_filter)
