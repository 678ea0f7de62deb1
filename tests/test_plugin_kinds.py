"""Every kind of plug-in: its row in the documentation, and built-in things that pass the checks for those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_agent.engines.engine_kinds import ENGINES
from dart_agent.exports.exporters import EXPORTERS
from dart_agent.formats.format_registry import FORMATS
from dart_agent.policies.policy_factory import HOSTED, POLICIES
from dart_gym.cluster.server.client_protocols import CLIENT_PROTOCOLS
from dart_gym.core.errors import UnknownNameError
from dart_gym.desktops.factory import DESKTOPS
from dart_gym.providers.provider_registry import PROVIDERS
from dart_gym.tasks.catalog.registry import SUITES
from dart_gym.utils.plugins import Registry
from dart_train.data.curation.drop_rules import RULES
from dart_train.trainer.losses.advantages import ADVANTAGES
from dart_train.trainer.losses.surrogates import LOSSES
from dart_train.trainer.settings.trainer_section import TRAINERS

KINDS: list[Registry] = [
    SUITES, DESKTOPS, PROVIDERS, CLIENT_PROTOCOLS, FORMATS, POLICIES, EXPORTERS, ENGINES, RULES, LOSSES, ADVANTAGES,
    TRAINERS,
]  # fmt: skip
PAGE = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text()
NEEDS_OPTIONS = {"vlm", "chat", *HOSTED, "human", "oracle", "dart_grpo"}  # made by who opens them, not by name


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
