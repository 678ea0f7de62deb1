"""The image of trainer and Ray's nodes, built for the CPU: its commands start, and a model is prepared in it."""

from __future__ import annotations

import os
import subprocess

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]


def in_image(*command: str, entry: str = "dart-train") -> str:
    image = os.environ["DART_TRAIN_IMAGE"]
    limits = ["--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    argv = ["docker", "run", "--rm", *limits, "--entrypoint", entry, image, *command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def test_its_configurations_resolve_and_place_on_a_machine_without_gpus():
    assert "name: quickstart" in in_image("run", "/opt/configs/quickstart.yaml", "--dry-run", "--show")


def test_a_run_prepares_its_model_as_a_user_without_rights():
    said = in_image(
        "-c", "id -u && ray --version && dart-train process /opt/configs/quickstart.yaml prepare --runs-dir /runs && "
        "cat /runs/quickstart/checkpoints/v000000/config.json", entry="bash",
    )  # fmt: skip
    assert said.startswith("1000\n") and "ray, version" in said and "qwen2_5_vl" in said
