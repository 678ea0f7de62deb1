"""The page of failures: a part of its table is run again, and no line of it is a traceback or an invention."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.failure_table import Case, cases, page, run, steady

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"


def test_the_page_has_every_situation_and_no_traceback():
    text = PAGE.read_text(encoding="utf-8")
    for case in cases():
        assert f"## {case.situation[0].upper()}{case.situation[1:]}" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(cases())
    for row in rows:
        assert "Traceback" not in row and "no end within" not in row and "and it made" not in row, row


def test_a_line_is_the_same_in_every_run():
    assert steady("no server at 127.0.0.1:4711 after 3.25 s in /tmp/x", "/tmp/x") == (
        "no server at 127.0.0.1:PORT after N s in DIR"
    )
    assert "| `a \\| b` | 1 | (none) |" in page([Case("x", "a", "{} | b")], lambda case: (1, "", []))


@pytest.mark.process
@pytest.mark.parametrize("situation", ["401", "nothing there", "closed pipe"])
def test_a_part_of_the_table_is_as_it_says(situation):
    case = next(one for one in cases() if one.situation == situation)
    status, last, made = run(case)
    assert made == []
    assert status == (0 if situation == "closed pipe" else 1) or situation == "closed pipe"
    assert last and "Traceback" not in last
