"""What is written for Docker, without Docker: the compose file and the Dockerfile keep their promises."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docker" / "osworld"
DOCKERFILE = (PLACE / "Dockerfile").read_text()
IMAGES = sorted(path.parent.name for path in (ROOT / "docker").glob("*/Dockerfile"))
COMPOSE = yaml.safe_load((PLACE / "compose.yaml").read_text())
SECRET = re.compile(r"TOKEN|PASSWORD")


@pytest.mark.parametrize("name", ["env", "mysql"])
def test_a_service_is_on_loopback_limited_checked_and_restarted(name):
    service = COMPOSE["services"][name]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["healthcheck"]["test"] and service["mem_limit"] and service["restart"]
    assert "no-new-privileges" in service["security_opt"]
    for volume in service["volumes"]:
        assert volume.split(":")[0] in COMPOSE["volumes"]


def test_the_secrets_of_the_compose_file_come_from_the_environment_and_must_be_set():
    for service in COMPOSE["services"].values():
        for variable, value in service["environment"].items():
            if SECRET.search(variable) and variable != "MYSQL_RANDOM_ROOT_PASSWORD":
                assert value.startswith(f"${{{variable}:?"), variable


def test_the_services_are_those_of_the_design():
    services = COMPOSE["services"]
    assert services["mysql"]["image"] == "mysql:8.0"
    build = services["env"]["build"]
    assert (PLACE / build["context"] / build["dockerfile"]).resolve() == PLACE / "Dockerfile"
    assert services["env"]["command"][0] == "serve"


def test_the_image_has_what_a_machine_is_set_up_with():
    packages = re.search(r"APT_PACKAGES=\((.*?)\)", (ROOT / "scripts/setup.sh").read_text(), re.DOTALL)
    assert packages is not None
    words = set(re.findall(r"[\w.+-]+", DOCKERFILE))
    assert not set(packages[1].split()) - words


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_copies_only_what_its_ignore_file_lets_through_and_ends_as_a_user(image):
    place = ROOT / "docker" / image
    text = (place / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    ignored = (place / "Dockerfile.dockerignore").read_text().splitlines()
    shown = [line[1:] for line in ignored if line.startswith("!")]
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert any(name == prefix or name.startswith(f"{prefix}/") for prefix in shown), name
    assert "*" in ignored
    assert re.findall(r"^USER (\w+)$", text, re.MULTILINE)[-1] == "user"
    assert "HEALTHCHECK" in text


@pytest.mark.parametrize("image", IMAGES)
def test_the_build_knows_no_secret_but_by_mounts(image):
    text = (ROOT / "docker" / image / "Dockerfile").read_text()
    arguments = re.findall(r"^(?:ARG|ENV) (.+)$", text, re.MULTILINE)
    assert not any(SECRET.search(line.upper()) for line in arguments)
    for line in re.findall(r"type=secret\S*", text):
        assert line.split(",")[1] in ("id=apt", "id=pip", "id=ca")


def test_the_script_is_a_valid_one():
    assert subprocess.run(["bash", "-n", "tests/docker/run.sh"], cwd=ROOT, timeout=30).returncode == 0
