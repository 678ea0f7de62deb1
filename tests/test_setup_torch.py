"""`scripts/torch.sh` with the real pip and uv, on small packages that stand for torch's builds and what they need."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.parameters import slow_but

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
TORCH = re.findall(r"^torch==(\S+)", (ROOT / "requirements" / "torch.txt").read_text(), re.MULTILINE)[0]
INSTALL = """set -euo pipefail
. scripts/common.sh
install .venv requirements/train.txt
install_torch .venv requirements/train.txt
check_torch .venv
"""
# As the real ones: without its libraries the CUDA build cannot be imported.
IMPORTED = """
{imports}
class tensor:
    def __init__(self, rows, device): self.rows = rows
    def __matmul__(self, other): return tensor([[7.0, 10.0], [15.0, 22.0]], None)
    def tolist(self): return self.rows
class cuda:
    @staticmethod
    def is_available(): return False
class version:
    hip = None
__version__ = "{version}"
"""


def wheel(folder: Path, name: str, version: str, *requires: str, text: str = "", tag: str = "py3-none-any") -> str:
    """Make a wheel; return its lines of a lock."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [f"Requires-Dist: {line}" for line in requires]
    files = {
        f"{module}/__init__.py": text,
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content.encode())}\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(member, content)
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("environment") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    return path


class Machine:
    """A copy of the scripts, with an environment, an index of packages and programs of its own."""

    def __init__(self, root: Path, environment: Path) -> None:
        self.root, self.index, self.cpu_index, self.bin = root / "project", root / "index", root / "cpu", root / "bin"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("common", "indexes", "torch"):
            shutil.copy(ROOT / "scripts" / f"{name}.sh", self.root / "scripts")
        script = self.root / "scripts" / "torch.sh"
        script.write_text(
            re.sub(r"^CPU_INDEX=.*", f"CPU_INDEX=file://{self.cpu_index}", script.read_text(), flags=re.M)
        )
        shutil.copytree(environment, self.root / ".venv", symlinks=True)
        (self.root / "requirements").mkdir()
        self.bin.mkdir()
        self.program("df", 'case "$1" in -Pk) echo; echo "x 1 1 99999999 1% /" ;; *) exec /usr/bin/df "$@" ;; esac')
        full = IMPORTED.format(imports="import nvidia_cublas, sympy", version=TORCH)
        locked = [
            wheel(self.index / "nvidia-cublas", "nvidia-cublas", "13.1"),
            wheel(self.index / "sympy", "sympy", "1.13"),
            wheel(self.index / "sympy", "sympy", "1.14"),
            wheel(self.index / "torch", "torch", TORCH, "sympy>=1", "nvidia-cublas==13.1", text=full),
        ]
        self.lock("torch", locked[0] + locked[2] + locked[3])
        self.lock("train", locked[1])  # an older one than torch.txt has: the lock decides

    def lock(self, name: str, text: str) -> None:
        (self.root / "requirements" / f"{name}.txt").write_text(text)

    def cpu_build(self, folder: Path) -> None:
        """Offer a CPU build there, in a folder of wheels or an index of them."""
        wheel(folder, "torch", f"{TORCH}+cpu", "sympy>=1", text=IMPORTED.format(imports="import sympy", version=TORCH))

    def gpu(self, driver: str) -> None:
        self.program("nvidia-smi", f'case "$*" in *driver_version*) echo {driver}; echo {driver} ;; esac')

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def offer(self, folder: Path) -> str:
        """Write the pages of an index over its wheels, and return its address."""
        for project in filter(Path.is_dir, folder.iterdir()):
            links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in project.glob("*.whl"))
            (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
        return f"file://{folder}"

    def install(self, script: str = INSTALL, **variables: str) -> subprocess.CompletedProcess[str]:
        if self.cpu_index.exists():
            self.offer(self.cpu_index)
        keep = {name: os.environ[name] for name in ("HOME", "SSL_CERT_FILE") if name in os.environ}
        hidden = {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1", "UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1"}
        variables = {"PIP_INDEX_URL": self.offer(self.index), **variables}
        path = f"{self.bin}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            ["bash", "-c", script], cwd=self.root, capture_output=True, text=True, timeout=100,
            env={**keep, **hidden, "PATH": path, **variables},
        )  # fmt: skip

    def installed(self) -> dict[str, str]:
        (packages,) = self.root.glob(".venv/lib/python*/site-packages")
        found = (path.name.removesuffix(".dist-info").rpartition("-") for path in packages.glob("*.dist-info"))
        return {name: version for name, _, version in found if name not in ("pip", "setuptools")}

    def uv(self) -> None:
        (self.bin / "uv").symlink_to(Path(sys.executable).with_name("uv"))


@pytest.fixture
def machine(tmp_path: Path, environment: Path) -> Machine:
    return Machine(tmp_path, environment)


FULL = {"torch": TORCH, "nvidia_cublas": "13.1", "sympy": "1.13"}
CPU = {"torch": f"{TORCH}+cpu", "sympy": "1.13"}


@pytest.mark.thorough
@pytest.mark.parametrize("uv", slow_but([True], [False, True]))
def test_without_a_cpu_build_its_size_is_said_and_all_that_torch_needs_is_installed(machine, uv):
    if uv:
        machine.uv()
    done = machine.install()
    assert done.returncode == 0, done.stderr
    assert "3 GB" in done.stderr and "no GPU" in done.stderr
    assert machine.installed() == FULL  # sympy as the lock has it
    again = machine.install()
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.slow
def test_torch_that_came_without_its_libraries_is_repaired(machine):
    address = machine.offer(machine.index)
    alone = [".venv/bin/python", "-m", "pip", "install", "-q", "--no-deps", "--index-url", address, f"torch=={TORCH}"]
    subprocess.run(alone, cwd=machine.root, check=True, env={"PIP_CONFIG_FILE": "/dev/null", "PATH": "/usr/bin:/bin"})
    assert machine.install().returncode == 0
    assert machine.installed() == FULL


@pytest.mark.thorough
def test_without_a_gpu_the_cpu_build_of_pytorchs_index_is_preferred(machine):
    machine.cpu_build(machine.cpu_index / "torch")
    done = machine.install()
    assert done.returncode == 0, done.stderr
    assert machine.installed() == CPU and "3 GB" not in done.stderr
    # That machine gets a GPU, and the user is not left with a build that ignores it.
    machine.gpu("580.65.06")
    done = machine.install()
    assert done.returncode == 0, done.stderr
    assert machine.installed() == FULL and "cannot use the GPU" in done.stderr  # the stand-in can not


@pytest.mark.thorough
def test_without_a_gpu_a_local_cpu_build_is_preferred(machine, tmp_path):
    machine.cpu_build(tmp_path / "wheels")
    done = machine.install(PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert done.returncode == 0, done.stderr
    assert machine.installed() == CPU


@pytest.mark.slow
def test_the_user_decides_by_an_index_of_builds(machine, tmp_path):
    machine.gpu("535.104")
    machine.cpu_build(tmp_path / "builds" / "torch")
    done = machine.install(DART_TORCH_INDEX=machine.offer(tmp_path / "builds"))
    assert done.returncode == 0, done.stderr
    assert machine.installed() == CPU


@pytest.mark.thorough
def test_an_old_driver_is_said_before_anything_is_downloaded(machine):
    machine.gpu("535.104.05")
    refused = machine.install()
    assert refused.returncode == 1 and "535.104.05" in refused.stderr and "580" in refused.stderr
    assert "DART_TORCH_INDEX=" in refused.stderr and "DART_TORCH_BUILD=cpu" in refused.stderr
    assert "torch" not in machine.installed()
    assert machine.install(DART_TORCH_BUILD="cpu").returncode == 0  # the advice can be followed
    unknown = machine.install(DART_TORCH_BUILD="rocm")
    assert unknown.returncode == 1 and "DART_TORCH_BUILD is cpu or cuda" in unknown.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("package", slow_but(["sympy"], ["sympy", "torch"]))
def test_an_index_without_a_wheel_for_this_python(machine, package):
    for path in (machine.index / package).glob("*.whl"):
        path.rename(path.with_name(path.name.replace("py3-none-any", "cp38-cp38-win_amd64")))
    failed = machine.install()
    assert failed.returncode == 1 and failed.stderr.count("error:") == 1
    wanted = "sympy==1.13" if package == "sympy" else f"torch=={TORCH}"
    assert f"has no {wanted} for this Python" in failed.stderr.split("error:")[1]
    assert "PYTHON=python3.12" in failed.stderr and f"file://{machine.index}" in failed.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("uv", "settings"),
    [
        (True, "pip.conf"),
        pytest.param(True, "PIP_INDEX_URL", marks=pytest.mark.slow),
        pytest.param(False, "UV_INDEX_URL", marks=pytest.mark.slow),
    ],
)
def test_a_mirror_that_one_of_pip_and_uv_knows_is_used_by_both(machine, tmp_path, uv, settings):
    address = machine.offer(machine.index)
    variables = {settings: address}
    if settings == "pip.conf":
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {address}\n")
        variables = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    if uv:
        machine.uv()
    without_pip = "run_pip() { die 'pip was called'; }\n" if uv else ""
    script = INSTALL.replace("install .venv", without_pip + "install .venv")
    done = machine.install(script, **{"PIP_INDEX_URL": "", **variables})
    assert done.returncode == 0, done.stderr
    assert machine.installed() == FULL


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.parametrize("uv", slow_but([False], [False, True]))
def test_a_disk_that_fills_during_set_up(machine, uv):
    noise = base64.b64encode(os.urandom(30 << 20)).decode()
    machine.lock("train", wheel(machine.index / "sympy", "sympy", "1.15", text=f'"""{noise}"""'))
    if uv:
        machine.uv()
    on_a_small_disk = (
        'mount -t tmpfs -o size=50m small disk && cp -a .venv scripts requirements disk && cd disk && bash -c "$1"'
    )
    (machine.root / "disk").mkdir()
    script = f"unshare --mount bash -c '{on_a_small_disk}' small \"$SCRIPT\""
    failed = machine.install(script, SCRIPT=INSTALL)
    assert failed.returncode == 1 and failed.stderr.count("error:") == 1, failed.stderr
    assert "the disk is full" in failed.stderr and "disk (" in failed.stderr.split("error:")[1]
    assert "run again" in failed.stderr
