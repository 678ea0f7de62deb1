"""The locked packages in `requirements/` agree with what `pyproject.toml` asks for, and name no index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = [
    *sorted((ROOT / "requirements").glob("*.txt")),
    ROOT / "dart_gym" / "tasks" / "evaluation" / "requirements.txt",
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)(?: ; ([^\\]+?))? \\$", re.MULTILINE)
PYTHONS = ("3.11", "3.12", "3.13")
BY_VERSION_ALONE = {"torch"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path, python: str = "3.11") -> dict[str, Version]:
    """The packages that a lock installs on a Python."""
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    found = {}
    for name, version, marker in PIN.findall(path.read_text()):
        if not marker or Requirement(f"{name} ; {marker}").marker.evaluate(environment):
            assert name not in found, f"{path.name} has {name} twice on Python {python}"
            found[canonical(name)] = Version(version)
    return found


def required(*extras: str) -> list[Requirement]:
    """What the project requires with these extras; an extra may name others."""
    lines = [Requirement(line) for line in PROJECT["dependencies"]]
    for extra in extras:
        for requirement in map(Requirement, EXTRAS[extra]):
            lines += required(*requirement.extras) if requirement.name == PROJECT["name"] else [requirement]
    return lines


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.parent.name + "/" + path.name)
def test_a_lock_has_exact_versions_with_hashes_and_no_address(path: Path):
    text = path.read_text()
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    entries = re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert PIN.match(entry) and "--hash=sha256:" in entry, entry
    assert path.name == "torch.txt" or not BY_VERSION_ALONE & set(pinned(path))


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("lock", "extras"),
    [("base", ()), ("train", ("train",)), ("test", ("test",)), ("docs", ("docs",)), ("hubs", ("mcp",))],
)
def test_a_lock_has_what_the_project_asks_for(lock: str, extras: tuple[str, ...], python: str):
    found = pinned(ROOT / "requirements" / f"{lock}.txt", python)
    for requirement in required(*extras):
        name = canonical(requirement.name)
        if name not in BY_VERSION_ALONE:
            assert name in found, f"{lock}.txt lacks {name}; next step: make lock"
            assert requirement.specifier.contains(found[name]), (
                f"{lock}.txt: {name} {found[name]}; next step: make lock"
            )


def test_the_oldest_packages_are_the_floors_of_the_project():
    found = pinned(ROOT / "requirements" / "floors.txt")
    floors = {canonical(r.name): min(s.version for s in r.specifier if s.operator == ">=") for r in required("train")}
    for name in floors.keys() - BY_VERSION_ALONE:
        assert found[name] == Version(floors[name]), f"{name} {found[name]}; next step: make lock"


@pytest.mark.parametrize("name", ["evaluator", "desktop", "openenv", "hubs", "vllm", "pytest", "package"])
def test_a_lock_has_what_its_list_asks_for(name: str):
    folder = ROOT / "requirements"
    path = LOCKS[-1] if name == "evaluator" else folder / f"{name}.txt"
    found = pinned(path)
    for line in (folder / f"{name}.in").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            assert requirement.specifier.contains(found[canonical(requirement.name)], prereleases=True), line


def test_openenvs_project_is_locked_to_pypi_and_to_this_checkout():
    folder = ROOT / "integrations" / "openenv"
    lock = tomllib.loads((folder / "uv.lock").read_text())
    found = {package["name"]: package for package in lock["package"]}
    away = [one for one in lock["package"] if one["source"] != {"registry": "https://pypi.org/simple"}]
    assert {one["name"] for one in away} == {"dart-gui", "dart-gym-openenv"}
    files = [file["url"] for one in lock["package"] for file in [*one.get("wheels", []), one.get("sdist")] if file]
    assert files and all(url.startswith("https://files.pythonhosted.org/packages/") for url in files)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, [*project["dependencies"], *PROJECT["dependencies"]]):
        version = found[canonical(requirement.name)]["version"]
        assert requirement.specifier.contains(version), f"{requirement.name} {version}; next step: make lock"


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_that_are_installed_together_agree(python: str):
    together = pinned(ROOT / "requirements" / "test.txt", python)
    for name in ("base", "train", "docs", "pytest"):
        for package, version in pinned(ROOT / "requirements" / f"{name}.txt", python).items():
            assert together.get(package, version) == version, f"{package} in {name}.txt"


def test_torch_is_one_version_and_no_older_than_its_floor():
    version = pinned(ROOT / "requirements" / "torch.txt")["torch"]
    (floor,) = (requirement for requirement in required("train") if requirement.name == "torch")
    assert floor.specifier.contains(version)
    image = (ROOT / "docker" / "train" / "Dockerfile").read_text()
    assert f"ARG TORCH=torch=={version}\n" in image


def test_the_oldest_driver_that_set_up_accepts_is_that_of_the_locked_cuda():
    script = (ROOT / "scripts" / "torch.sh").read_text()
    (driver,) = re.findall(r"^OLDEST_DRIVER=(\d+)", script, re.MULTILINE)
    cuda = pinned(ROOT / "requirements" / "torch.txt")["cuda-toolkit"].major
    assert {12: "525", 13: "580"}[cuda] == driver, "see the CUDA toolkit's release notes"


@pytest.mark.parametrize("lock", ["train", "test", "hubs", "floors"])
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_with_torch_has_what_every_build_of_torch_needs(lock: str, python: str):
    """CUDA's libraries come with torch.txt, to which set-up adds nothing for other builds."""
    everywhere = pinned(ROOT / "requirements" / "torch.txt", python)
    cuda = {name for name in everywhere if name.startswith(("cuda-", "nvidia-")) or name in ("torch", "triton")}
    found = pinned(ROOT / "requirements" / f"{lock}.txt", python)
    assert everywhere.keys() - cuda <= found.keys() and not cuda & found.keys()
