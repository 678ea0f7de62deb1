"""The table of attacks in `docs/guides/security.md` names tests that there are, and every attack that once worked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.security

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ATTACKS = [str(number) for number in range(1, 16)]
TABLE = (
    (ROOT / "docs/guides/security.md")
    .read_text(encoding="utf-8")
    .partition("## Attacks, and the tests that hold them")[2]
)
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| no.")
]


def path_of(name: str) -> Path:
    return ROOT / name if name.startswith("tests/") else HERE / name


def named_by(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[-1])


def test_every_attack_that_worked_has_a_row():
    assert {row[0] for row in ROWS} >= {*ATTACKS, "low"}
    assert all(len(row) == 4 and named_by(row) for row in ROWS)


@pytest.mark.parametrize("name", sorted({name for row in ROWS for name in named_by(row)}))
def test_the_test_that_a_row_names_is_there(name):
    file, _, function = name.partition("::")
    tree = ast.parse(path_of(file).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function in defined if function else any(found.startswith("test_") for found in defined)


def test_every_file_of_attacks_is_in_the_table():
    named = {path_of(name.partition("::")[0]) for row in ROWS for name in named_by(row)}
    assert set(HERE.glob("test_*.py")) - named == {Path(__file__)}


def test_all_attacks_are_in_this_folder():
    """`scripts/security.sh` looks nowhere else: importing all tests takes longer than many attacks."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.security\b", path.read_text())]
    assert {path.parent for path in marked} == {HERE}
