"""Processes of the laboratory find their modules from whatever directory a command was started in."""

import subprocess

import pytest

from dart_lab.gym.own_processes import module_command, own_environment

pytestmark = pytest.mark.process


@pytest.mark.parametrize("module", ["dart_lab.reporting.report", "dart_lab.gym.cluster_server_process"])
def test_a_module_is_found_from_an_empty_directory(module, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    ran = subprocess.run(
        module_command(module, "--help"), cwd=tmp_path, env=own_environment(), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
