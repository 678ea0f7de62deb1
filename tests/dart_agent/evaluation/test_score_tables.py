"""Tables of scores as terminals show them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dart_agent.evaluation.score_tables import group_table, score_table
from dart_agent.evaluation.scores import GroupScore, TaskScore

LONG = "osworld/030eeff7-b492-4218-b312-701ec99ee0cc"


def shown(table) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("usage", [{}, {"usd": 1234.5}])
def test_every_header_and_number_is_whole_in_80_columns(usage):
    total = TaskScore(LONG, 1280, 770, 12, 0.61, 0.05, 1.0, 14.25, usage=usage)
    tasks = shown(score_table([total, total]))
    apps = shown(
        group_table([GroupScore("libreoffice_impress", 470, 0.61, (0.05, 1.0), 4, 0.8, (0.0, 1.0), 40, total)])
    )
    assert "…" not in tasks + apps
    for whole in ("episodes", "success", "interval", "score", "steps", "lost", "1280", "60 %", "5 - 100 %", "14.2"):
        assert whole in tasks, whole
    for whole in ("tasks", "episodes", "pass@1", "pass@4", "61 %", "5 - 100 %", "0 - 100 %", "of 40 tasks"):
        assert whole in apps, whole
    assert LONG in "".join(line.strip().split("  ")[0] for line in tasks.splitlines())  # folded, and nothing of it lost


def test_what_was_never_scored_has_no_numbers():
    total = TaskScore("s/a", 0, 0, 3, float("nan"), 0.0, 1.0, float("nan"), lost_by={"engine": 3})
    said = shown(score_table([total]))
    assert "nan" not in said and "0 - 100 %" not in said and said.count(" - ") >= 4
