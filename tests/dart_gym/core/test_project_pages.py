"""Messages of an installed wheel send nobody to files of a checkout, which only `project_pages` names."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from dart_gym.core import project_pages
from dart_gym.core.project_pages import integration, page, step, with_addresses

ROOT = Path(__file__).parents[3]
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
OF_A_CHECKOUT = re.compile(
    r"\bmake (?:setup|apps|quickstart|multiturn|demo|docs|test[\w-]*)\b|\bscripts/\w|\bdocs/[\w/]+\.md|\bconfigs/"
    r"|\btests/\w|\bexamples/\w|\./integrations/"
)
ADDRESSED = {"Field", "setting", "step"}  # descriptions are shown by `with_addresses`; `step` is the choice itself

OF_DEVELOPERS = {"project_pages.py", "solved_coverage.py"}
"""The one that chooses, and one that writes a page of the checkout."""


@pytest.fixture
def wheel(monkeypatch):
    """As an installed wheel is; tests/package has a real one, whose metadata say the addresses."""
    monkeypatch.setattr(project_pages, "in_checkout", lambda: False)
    monkeypatch.setattr(project_pages, "project_url", URLS.__getitem__)


def test_a_checkout_names_its_files():
    assert page("guides/engines") == "docs/guides/engines.md" and (ROOT / page("guides/engines")).is_file()
    assert with_addresses("see docs/reference/formats.md") == "see docs/reference/formats.md"
    assert step("make apps", "pip") == "make apps"
    assert (ROOT / integration("hosted_models").rpartition(" ")[2]).is_dir()


def test_a_wheel_gives_whole_addresses(wheel):
    assert page("guides/engines") == f"{URLS['Documentation']}/guides/engines.md"
    assert (
        with_addresses("see docs/reference/formats.md, docs/guides/ray.md.")
        == f"see {page('reference/formats')}, {page('guides/ray')}."
    )
    assert step("make apps", "pip") == "pip"
    command = integration("hosted_models")
    assert f"git+{URLS['Repository']}#subdirectory=integrations/hosted_models" in command


def _texts(path: Path) -> list[tuple[int, str]]:
    """Lines and texts that a program may show: constants but for docstrings and what `ADDRESSED` are called with."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ADDRESSED:
            passed |= {id(below) for below in ast.walk(node)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed
    ]


@pytest.mark.parametrize("package", ["dart_gym", "dart_agent", "dart_train"])
def test_no_message_names_what_only_a_checkout_has(package: str):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:80]!r}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name not in OF_DEVELOPERS
        for line, text in _texts(path)
        if OF_A_CHECKOUT.search(text)
    ]
    assert not found
