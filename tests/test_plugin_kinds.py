"""Every kind of plug-in: its row in the documentation, and built-in things that pass the checks for those of others."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dart_agent.engines.engine_kinds import ENGINES
from dart_agent.exports.exporters import EXPORTERS
from dart_agent.formats.format_registry import FORMATS
from dart_agent.judging.judge import REWARDS
from dart_agent.policies.planned_policies import PLANNERS
from dart_agent.policies.policy_factory import POLICIES
from dart_gym.cluster.server.client_protocols import CLIENT_PROTOCOLS
from dart_gym.core.errors import UnknownNameError
from dart_gym.desktops.factory import DESKTOPS
from dart_gym.providers.provider_registry import PROVIDERS
from dart_gym.tasks.catalog.registry import SUITES
from dart_gym.utils.plugins import INTEGRATIONS, Registry
from dart_train.config.added_phases import ADDED_PHASES
from dart_train.data.curation.drop_rules import RULES
from dart_train.data.curation.fork_settings import FORK_RULES
from dart_train.rollout.settings.rollout_config import SCHEDULERS
from dart_train.rollout.settings.teacher_config import TEACHERS
from dart_train.trainer.losses.advantages import ADVANTAGES
from dart_train.trainer.losses.surrogates import LOSSES
from dart_train.trainer.settings.trainer_section import TRAINERS

KINDS: list[Registry] = [
    SUITES, DESKTOPS, PROVIDERS, CLIENT_PROTOCOLS, FORMATS, POLICIES, EXPORTERS, ENGINES, RULES, LOSSES, ADVANTAGES,
    TRAINERS, PLANNERS, ADDED_PHASES, FORK_RULES, SCHEDULERS, TEACHERS, REWARDS,
]  # fmt: skip
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "plugins.md").read_text()
NEEDS_OPTIONS = {"vlm", "chat", "human", "oracle", "dart_grpo"}  # made by who opens them, not by name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_it_has_a_row_in_the_documentation(kind: Registry):
    assert f"| `{kind.group}` |" in PAGE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_what_is_built_in_passes_the_checks_for_what_is_not(kind: Registry):
    for name in set(kind.built_in) - NEEDS_OPTIONS:
        for check in kind.checks:
            assert check(kind.get(name)) is None, f"{kind.kind} {name}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_an_unknown_name_says_what_there_is(kind: Registry):
    with pytest.raises(UnknownNameError, match=f"unknown {kind.kind} 'no such thing'; known: .*`module:Class`"):
        kind.get("no such thing")


def test_names_of_the_integrations_are_told_where_they_are_not_installed():
    """In a process without the packages: which one it is, for a policy, a format with a variant, and a provider."""
    code = (
        "from dart_agent.formats import get_format\n"
        "from dart_agent.policies.policy_factory import POLICIES\n"
        "from dart_gym.core.errors import UnknownNameError\n"
        "from dart_gym.providers.provider_registry import PROVIDERS\n"
        "for get, name in ((POLICIES.get, 'gemini'), (get_format, 'anthropic:2026-08'), (get_format, 'holo:1.5'),\n"
        "                  (PROVIDERS.get, 'osworld-vm')):\n"
        "    try:\n"
        "        get(name)\n"
        "    except UnknownNameError as error:\n"
        "        print(error)\n"
    )
    run = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    assert len(lines) == 4 and all("is of a package that is not installed" in line for line in lines)
    for line, (name, package) in zip(
        lines,
        (
            ("'gemini'", "hosted_models"),
            ("'anthropic", "hosted_models"),
            ("'holo", "more_formats"),
            ("vm'", "osworld_vm"),
        ),
        strict=True,
    ):
        assert name in line and f"pip install --no-deps ./integrations/{package}`" in line


def test_the_table_of_the_integrations_is_what_their_projects_say():
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "integrations").glob("*/pyproject.toml")):
        for group, points in tomllib.loads(path.read_text())["project"].get("entry-points", {}).items():
            if group.startswith("dart_gui."):
                found.setdefault(group, {}).update(dict.fromkeys(points, path.parent.name))
    assert found == INTEGRATIONS
