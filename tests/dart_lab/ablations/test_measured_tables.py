"""The tables of docs/results/ablations.md are what `dart-train ablate` makes of the runs in docs/measured."""

import json
from pathlib import Path

import pytest

from dart_lab.ablations.ablation import BASE
from dart_lab.ablations.ablation_table import Outcome, markdown, summary

DOCS = Path(__file__).parents[3] / "docs"
MEASURED = (
    "ablations",
    "ablations_more",
    "ablations_pool",
    "ablations_tis",
    "coupled",
    "coupled_paced",
    "drawn_hard",
    "drawn_hard_long",
    "forks_and_teacher",
    "ten_tasks",
)

BUDGETS = {
    "coupled": "minutes",
    "coupled_paced": "minutes",
    "drawn_hard": "actions",
    "drawn_hard_long": "actions",
    "forks_and_teacher": "actions",
    "ten_tasks": "actions",
}
"""What the runs' budgets count; rollouts for the others."""


def test_every_kept_file_is_known():
    assert sorted(path.stem for path in (DOCS / "measured").glob("*.json")) == sorted(MEASURED)


@pytest.mark.parametrize("name", MEASURED)
def test_the_page_shows_what_was_measured(name):
    by = BUDGETS.get(name, "rollouts")
    runs = json.loads((DOCS / "measured" / f"{name}.json").read_text())["runs"]
    outcomes = [Outcome(**{**run, "curve": tuple(tuple(point) for point in run["curve"])}) for run in runs]
    table = markdown(summary(outcomes, base=BASE, by=by), by=by)
    assert table.strip() in (DOCS / "results" / "ablations.md").read_text()
