"""`integrations/hosted_models` and `integrations/more_formats`, installed by pip: names work as built-in ones do.

The other tests of these packages use them from the tree, see `tests/conftest.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.packages import INTEGRATIONS, pip_install

ROOT = Path(__file__).parents[3]
CODE = """
from dart_agent.formats import formats, get_format, variants
from dart_agent.formats.format_registry import FORMATS
from dart_agent.policies.policy_factory import POLICIES
print({name: POLICIES.describe()[name] for name in ("anthropic", "openai", "gemini")})
names = ("anthropic:2026-08", "openai", "gemini:2.5", "glm_v", "holo:1.5", "opencua", "pyautogui")
print([get_format(name).name for name in names])
print(sorted(set(formats()) - set(FORMATS.built_in)), variants("holo"))
import dart_gym_hosted_models
print(dart_gym_hosted_models.__file__)
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)  # pip, twice
def test_they_add_their_names_once_installed(tmp_path):
    sites = [str(pip_install(INTEGRATIONS / name, tmp_path / name)) for name in ("hosted_models", "more_formats")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sites, str(ROOT)])}
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        environment.pop(variable, None)
    run = subprocess.run([sys.executable, "-c", CODE], env=environment, cwd="/", capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    policies, formats, added, where = run.stdout.splitlines()
    assert policies.count("package dart-gym-hosted-models") == 3
    assert formats == "['anthropic', 'openai', 'gemini', 'glm_v', 'holo', 'opencua', 'pyautogui']"
    assert added == "['anthropic', 'gemini', 'glm_v', 'holo', 'openai', 'opencua', 'pyautogui'] ['1', '1.5', '2']"
    assert where.startswith(sites[0])
    command = [sys.executable, "-m", "dart_agent.commands.agent_cli", "run", "fake/two-steps", "--policy", "anthropic"]
    said = subprocess.run([*command, "--model", "m"], env=environment, cwd="/", capture_output=True, text=True)
    assert said.returncode != 0 and "environment variable ANTHROPIC_API_KEY" in " ".join(said.stderr.split())
