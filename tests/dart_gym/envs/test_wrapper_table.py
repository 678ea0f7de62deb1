"""Every wrapper of Gymnasium on every kind of environment, in each autoreset mode: it works, or is refused clearly."""

from __future__ import annotations

import warnings

import gymnasium.wrappers
import pytest

from scripts import wrapper_table

REFUSALS = ("autoreset_mode", "needs a package more")
"""What a refusal says."""
pytestmark = pytest.mark.usefixtures("one_private_cluster")

QUICK = [cell for cell in wrapper_table.cells() if not cell[2].startswith("Async")]
SLOW = [cell for cell in wrapper_table.cells() if cell[2].startswith("Async")]


def check(cell: tuple[str, bool, str]) -> None:
    name, of_vector, kind = cell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = wrapper_table.verdict(kind, name, of_vector=of_vector)
    assert found == "yes" or any(words in found for words in REFUSALS), found


@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_a_wrapper_works_or_is_refused(cell):
    check(cell)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("cell", SLOW, ids=str)
def test_a_wrapper_works_in_other_processes_or_is_refused(cell):
    check(cell)


def test_every_wrapper_is_in_the_table_or_left_out_with_a_reason():
    left_out = {name for names in wrapper_table.LEFT_OUT for name in names.split(", ")}
    for module, names in ((gymnasium.wrappers, wrapper_table.ONE), (gymnasium.wrappers.vector, wrapper_table.MANY)):
        assert set(module.__all__) - {"vector"} <= set(names) | left_out
        assert set(names) <= set(module.__all__)


def test_the_docs_have_a_row_for_each():
    page = wrapper_table.PAGE.read_text(encoding="utf-8")
    table = page.partition(wrapper_table.BEGIN)[2].partition(wrapper_table.END)[0]
    for name in (*wrapper_table.ONE, *wrapper_table.MANY, *wrapper_table.LEFT_OUT):
        assert all(f"`{part}`" in table for part in name.split(", ")), name
