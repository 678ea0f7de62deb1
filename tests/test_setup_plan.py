"""The plan of the locked set-up, resolved against the package index as any stranger's machine sees it.

What `scripts/` would install is resolved once more with all requirements of all packages. The resolver must add
nothing: each requirement of each package is in the plan, at a version that suits it. Local wheels, local indexes and
all settings of pip and uv are hidden, except for the address of a mirror. Only metadata is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
INDEX = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
KEPT = (
    "PATH",
    "HOME",
    "SSL_CERT_FILE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
MACHINES = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
TORCH = re.findall(r"^torch==(\S+)", (ROOT / "requirements" / "torch.txt").read_text(), re.MULTILINE)[0]
# What `make` sets up with a lock of ours alone; the second word says that torch belongs to it.
PLANS = [
    *[("train torch", python, "x86_64") for python in ("3.11", "3.12", "3.13")],
    *[("train torch", "3.11", "aarch64"), ("test torch", "3.13", "x86_64")],
    *[(name, "3.11", "x86_64") for name in ("floors torch", "hubs torch", "base", "docs", "openenv", "package")],
]


def torch_step(lock: Path, folder: Path) -> Path:
    """Let `install_torch` choose where there is neither a GPU nor a CPU build; return the list that it installs."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to("/bin/false")  # no local build, no answer of PyTorch's index
    for name in ("scripts", "requirements"):
        (folder / name).symlink_to(ROOT / name)
    script = """set -euo pipefail
. scripts/common.sh
torch_here() { :; }
need_space() { :; }
packages() { printf '%s\\n' "$@" >packages; }
install_torch .venv "$1"
"""
    environment = {"PATH": os.environ["PATH"], "DART_TORCH_BUILD": "cpu"}
    subprocess.run(["bash", "-c", script, "torch", lock], cwd=folder, env=environment, check=True, capture_output=True)
    words = (folder / "packages").read_text().split()
    assert "--no-deps" in words and words[-2] == "-r"
    return folder / words[-1]


def resolved(folder: Path, python: str, machine: str, *files: Path, only_listed: bool) -> dict[str, str]:
    """Return the packages that these lists install there: those that they name, or all that those require too."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    if certificates := os.environ.get("PIP_CERT"):
        environment.setdefault("SSL_CERT_FILE", certificates)
    command = [UV, "pip", "compile", "-q", "--no-config", "--no-header", "--no-annotate", "--default-index", INDEX]
    command += [
        "--python",
        sys.executable,
        "--python-version",
        python,
        "--python-platform",
        MACHINES[machine],
        "--only-binary",
        ":all:",
    ]
    command += ["--no-deps"] if only_listed else []
    done = subprocess.run([*command, *files], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE))


@pytest.fixture(scope="module", autouse=True)
def index() -> None:
    """An index that can be reached: in CI there must be one, a developer may be offline."""
    probe = [UV, "pip", "compile", "-q", "--no-config", "--no-cache", "--default-index", INDEX, "-"]
    environment = {**os.environ, "UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"}
    done = subprocess.run(probe, input="six", env=environment, capture_output=True, text=True)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"no package index at {INDEX}")


@pytest.mark.parametrize(("plan", "python", "machine"), PLANS)
def test_each_requirement_of_each_package_is_in_the_plan(tmp_path: Path, plan: str, python: str, machine: str):
    name, *torch = plan.split()
    lock = ROOT / "requirements" / f"{name}.txt"
    files = [lock, torch_step(lock, tmp_path)] if torch else [lock]
    installed = resolved(tmp_path, python, machine, *files, only_listed=True)
    assert installed == resolved(tmp_path, python, machine, *files, only_listed=False)
    libraries = {package for package in installed if package.startswith("nvidia-")}
    if torch:
        assert {"torch", "triton", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"} <= installed.keys()
    else:
        assert not libraries and "torch" not in installed


def test_libraries_that_set_up_leaves_out_are_found(tmp_path: Path):
    """As it once did: torch came alone."""
    alone = tmp_path / "torch.txt"
    alone.write_text(f"torch=={TORCH}\n")
    files = [ROOT / "requirements" / "train.txt", alone]
    everything = resolved(tmp_path, "3.11", "x86_64", *files, only_listed=False)
    lacking = everything.keys() - resolved(tmp_path, "3.11", "x86_64", *files, only_listed=True).keys()
    assert {"nvidia-cudnn-cu13", "nvidia-nccl-cu13", "triton", "cuda-toolkit"} <= lacking
