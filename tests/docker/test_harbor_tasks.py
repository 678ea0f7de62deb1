"""Tasks that `integrations/harbor` exports, in containers made of their own Dockerfile, as Harbor goes through them."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docker.test_docker_desktop import docker, image  # noqa: F401  a fixture

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def harbor(tmp_path_factory):
    """The exporter, which is no part of the package."""
    sys.path.insert(0, str(ROOT / "integrations/harbor"))
    yield importlib.import_module("dart_gym_harbor")
    sys.path.remove(str(ROOT / "integrations/harbor"))


@pytest.mark.parametrize("task", ["fake/two-steps", "miniwob/click-test-2"])
def test_an_exported_task_is_solved_and_scored_in_its_container(task, harbor, image, tmp_path):  # noqa: F811
    (folder,) = asyncio.run(harbor.export(tmp_path, [task], 1, image))
    about = tomllib.loads((folder / "task.toml").read_text())
    docker("build", "-q", "-t", "harbor-task", str(folder / "environment"))
    for solve, score in ((True, 1.0), (False, 0.0)):
        name = f"harbor-{os.getpid()}"
        docker("run", "-d", "--rm", "--network=none", "--name", name, "harbor-task", "sleep", "infinity")
        try:
            docker("exec", "-u", "root", name, "install", "-d", "-o", "user", "/logs/verifier")
            docker("exec", name, "bash", "-c", about["environment"]["healthcheck"]["command"])
            if solve:
                docker("cp", str(folder / "solution"), f"{name}:/solution")
                docker("exec", name, "/solution/solve.sh")
            docker("cp", str(folder / "tests"), f"{name}:/tests")
            docker("exec", name, "/tests/test.sh")
            assert float(docker("exec", name, "cat", "/logs/verifier/reward.txt")) == score
        finally:
            docker("rm", "-f", name)
