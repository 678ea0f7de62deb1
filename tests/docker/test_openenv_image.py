"""The image for a Space of OpenEnv: its own client, in the container, plays on its server."""

from __future__ import annotations

import os

import pytest

from tests.docker.test_docker_desktop import docker
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]
PLAY = """
import re
from dart_gym_openenv import DesktopAction, DesktopClient
with DesktopClient(base_url="http://127.0.0.1:8000", message_timeout_s=120).sync() as env:
    seen = env.reset(task_id="miniwob/click-test", seed=1).observation
    print(seen.instruction, seen.png[:4], env.step(DesktopAction(kind="wait", seconds=0.1)).done)
    seen = env.step(DesktopAction(kind="done")).observation
    print(seen.evaluation_status, seen.env_fault)
"""


def test_its_client_plays_on_its_server():
    image = os.environ.get("DART_OPENENV_IMAGE")
    assert image, "this test needs a Docker daemon and the image: run it by tests/docker/run.sh (or make test-docker)"
    restricted = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none"]
    container = docker("run", "-d", *restricted, image).strip()
    try:
        health = "{{.State.Health.Status}}"
        wait_until(lambda: docker("inspect", "-f", health, container).strip() == "healthy", 120.0, look_s=1.0)
        said = docker("exec", container, "/opt/openenv/bin/python", "-c", PLAY)
        assert said.splitlines() == ["Click the button. b'\\x89PNG' False", "ok False"], docker("logs", container)
    finally:
        docker("rm", "-f", container)
