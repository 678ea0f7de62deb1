"""A real vLLM server on the CPU for tests marked `vllm`: `make test-vllm` makes its environment, .venv-vllm.

A test module takes the fixtures by `from tests.helpers.vllm_server import vllm_model, vllm_url`.
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.utils.processes import die_with_parent, free_port

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / ".venv-vllm" / "bin" / "vllm"
START_S = 900.0  # 25 s on an idle machine

# The CPU backend's attention wants heads of 32, 64, ...: build models with hidden_size = 32 * heads.
HEAD_SIZE = 32

OPTIONS = ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8")
FOR_TRAINING = (
    "--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm",
    "--max-model-len", "2048",
)  # fmt: skip
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def program() -> Path:
    """The `vllm` command."""
    if not PROGRAM.exists():
        raise FileNotFoundError(f"{PROGRAM} does not exist: run `make test-vllm`, or leave out the tests marked vllm")
    return PROGRAM


def experts_on_cpu(folder: Path) -> dict[str, str]:
    """Environment in which vLLM serves adapters of a mixture of experts on a CPU; a plug-in is written to `folder`.

    Where adapters are served, vLLM 0.32 computes the experts by kernels for GPUs, even if they get no adapter. The
    plug-in has it choose those for the CPU then; all else is as it is.
    """
    about = folder / "experts_on_cpu-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: experts-on-cpu\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nexperts = experts_on_cpu:load\n")
    (folder / "experts_on_cpu.py").write_text(
        "def load():\n"
        "    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as experts\n"
        "    choose = experts.select_unquantized_moe_backend\n"
        "    def on_cpu(moe_config):\n"
        "        moe_config.is_lora_enabled = False\n"
        "        return choose(moe_config)\n"
        "    experts.select_unquantized_moe_backend = on_cpu\n"
    )
    return {"PYTHONPATH": str(folder)}


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
    limits = f'{{"image": {images}, "video": 0}}'
    line = ["--served-model-name", "policy", "--limit-mm-per-prompt", limits, *FOR_TRAINING, *options]
    with served(model_dir, log, *line, dev=dev) as url:
        yield url


@contextlib.contextmanager
def served(model_dir: Path, log: Path, *options: str, dev: bool = False) -> Iterator[str]:
    """Serve a model directory with no options but those of a small CPU and these; yields the URL.

    Args:
        model_dir: with head size 32.
        log: where the server's output goes.
        options: more of the command line.
        dev: whether it can be steered and updated.
    """
    with tempfile.TemporaryDirectory(prefix="dart-vllm-") as place:
        port = free_port()
        argv = [str(program()), "serve", str(model_dir), "--host", "127.0.0.1", "--port", str(port), *OPTIONS, *options]
        settings = {
            "VLLM_SERVER_DEV_MODE": "1" if dev else "0",
            **ENVIRONMENT,
            "VLLM_HOST_IP": "127.0.0.1",  # its own processes talk on loopback, too
            "VLLM_NO_USAGE_STATS": "1",
            "TMPDIR": place,  # else its sockets and files stay in /tmp
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


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2.5-VL that the CPU backend can serve; its outputs depend on its images."""
    directory = tmp_path_factory.mktemp("vllm-model")
    return build_tiny_model(directory, seed=11, config=tiny_config())


@pytest.fixture(scope="session")
def vllm_url(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests. Its weights are updated by tests: ask it for its version, and load what you need."""
    with vllm_server(vllm_model, tmp_path_factory.mktemp("vllm") / "server.log") as url:
        yield url


def tiny_config(family: str = "qwen2_5_vl") -> TinyModelConfig:
    """The smallest model of a family with heads that the CPU backend takes."""
    return TinyModelConfig(
        family=family,
        hidden_size=2 * HEAD_SIZE,
        heads=2,
        vision_layers=2,
        temporal_patch_size=2,
        matrix_std=0.15,
        max_length=2048,
    )
